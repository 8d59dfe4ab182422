"""Student's distribution, compared with printed tables."""

import pytest

from traincope.analysis.student import student_quantile, student_tail


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.776), (6, 2.447), (10, 2.228), (30, 2.042), (120, 1.980)])
def test_students_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, abs=0.004)
    assert student_tail(quantile, freedom) == pytest.approx(0.05, abs=2e-4)
