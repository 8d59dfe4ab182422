"""Predicted MFU of published trainings. `make truth-plan` prints the table."""

import pytest

from tests.truth.formulas.predicted import ALLOWED_MEDIAN, Predictor, fit, median_error, rows, trainings
from traincope.plan.search.caveats import CHECKED, CP_ERROR_RATIO, FITTED_ON, MEDIAN_ERROR_RATIO, Checked
from traincope.plan.search.clusters import ACCELERATORS, FITTED


@pytest.mark.sweep
def test_published_trainings_are_predicted_by_the_others() -> None:
    """No row is left out; the median error is 1.7 %, and 7.1 % by constants of other papers."""
    predicted = list(rows())
    assert len(predicted) == 22
    assert {row.paper for row in predicted} == {"Megatron 2021", "Korthikanti 2022", "BLOOM 2022", "Llama 3 2024"}
    median = median_error(row.error for row in predicted)
    assert median == pytest.approx(MEDIAN_ERROR_RATIO, abs=0.003)
    assert median <= ALLOWED_MEDIAN
    assert median_error(row.error_by_other_papers for row in predicted) == pytest.approx(0.071, abs=0.005)
    assert [row.error for row in predicted if "cp 16" in row.name] == pytest.approx([CP_ERROR_RATIO], abs=0.001)


def test_the_constants_are_those_of_the_fit() -> None:
    fitted = fit([Predictor(training) for training in trainings()])
    assert fitted.efficiency == pytest.approx(FITTED.efficiency, rel=0.01)
    assert fitted.accesses == pytest.approx(FITTED.accesses, rel=0.01)
    assert fitted.link_share == pytest.approx(FITTED.link_share, rel=0.01)


def test_the_accelerators_of_the_fit_are_those_of_the_trainings() -> None:
    """And one published training has cp."""
    rows = list(trainings())
    specs = (each.spec for each in ACCELERATORS.values() if each.spec.name in FITTED_ON)
    peaks = {round(spec.tflops["bfloat16"]) for spec in specs}
    assert {round(training.machine.peak_flops / 1e12) for training in rows} == peaks
    assert sum(training.layouts[0].cp > 1 for training in rows) == 1


def test_the_sizes_that_the_answer_names_are_those_of_the_trainings() -> None:
    rows = list(trainings())
    layouts = [layout for training in rows for layout in training.layouts]
    assert (
        Checked(
            trainings=len(rows),
            gpus=(min(layout.ranks for layout in layouts), max(layout.ranks for layout in layouts)),
            tp=max(layout.tp for layout in layouts),
            pp=max(layout.pp for layout in layouts),
            zero=frozenset(layout.zero for layout in layouts),
            schedules=frozenset(layout.order_name for layout in layouts),
        )
        == CHECKED
    )
    assert not any(training.shape.experts for training in rows)
