"""Settings of `run.describe()` that count as numbers."""

import pytest

from traincope.analysis.efficiency.declared_flops import positive


@pytest.mark.parametrize(("value", "number"), [(1, 1.0), (2.5, 2.5), (10**24, 1e24)])
def test_a_positive_number_is_accepted(value: object, number: float) -> None:
    assert positive(value) == number


@pytest.mark.parametrize("value", [0, -1, True, "1", None, [1], 1e300, 1e-300, 10**400])
def test_unusable_values_are_none(value: object) -> None:
    assert positive(value) is None
