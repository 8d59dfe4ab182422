"""Predicted MFU of published trainings. `make truth-plan` prints the table."""

import pytest

from tests.truth.formulas.predicted import ALLOWED_MEDIAN, Predictor, fit, median_error, rows, trainings
from traincope.plan.search.clusters import FITTED


@pytest.mark.sweep
def test_published_trainings_are_predicted_by_the_others() -> None:
    """No row is left out; the median error is 2.0 %, and 7.9 % by constants of other papers."""
    predicted = list(rows())
    assert len(predicted) == 22
    assert {row.paper for row in predicted} == {"Megatron 2021", "Korthikanti 2022", "BLOOM 2022", "Llama 3 2024"}
    median = median_error(row.error for row in predicted)
    assert median == pytest.approx(0.020, abs=0.003)
    assert median <= ALLOWED_MEDIAN
    assert median_error(row.error_by_other_papers for row in predicted) == pytest.approx(0.079, abs=0.005)


def test_the_constants_are_those_of_the_fit() -> None:
    fitted = fit([Predictor(training) for training in trainings()])
    assert fitted.efficiency == pytest.approx(FITTED.efficiency, rel=0.01)
    assert fitted.accesses == pytest.approx(FITTED.accesses, rel=0.01)
    assert fitted.link_share == pytest.approx(FITTED.link_share, rel=0.01)
