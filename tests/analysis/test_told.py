"""What a training may tell by `run.describe()`: anything; what counts as a number is one to reckon with."""

import pytest

from traincope.analysis.told import positive


@pytest.mark.parametrize(("told", "number"), [(1, 1.0), (2.5, 2.5), (10**24, 1e24)])
def test_a_positive_number_is_one(told: object, number: float) -> None:
    assert positive(told) == number


@pytest.mark.parametrize("told", [0, -1, True, "1", None, [1], 1e300, 1e-300, 10**400])
def test_what_no_product_could_be_made_of_is_none(told: object) -> None:
    assert positive(told) is None
