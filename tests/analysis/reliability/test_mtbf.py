"""The mean time between interruptions and its exact interval."""

import pytest

from traincope.analysis.reliability.mtbf import mtbf, poisson_bounds

HOUR_NS = 3_600_000_000_000

CHI_SQUARE = {
    (2, 0.025): 0.0506,
    (20, 0.025): 9.591,
    (60, 0.025): 40.482,
    (100, 0.025): 74.222,
    (4, 0.975): 11.143,
    (22, 0.975): 36.781,
    (40, 0.975): 59.342,
    (100, 0.975): 129.561,
}
"""(Degrees of freedom, probability below) -> value of the published table (NIST/SEMATECH e-Handbook, 1.3.6.7.4)."""


@pytest.mark.parametrize(("freedom", "below"), CHI_SQUARE)
def test_the_limits_are_half_of_the_chi_square_values(freedom: int, below: float) -> None:
    """The lower limit of n has 2 n degrees of freedom, the upper one 2 n + 2."""
    low, high = poisson_bounds(freedom // 2 if below < 0.5 else freedom // 2 - 1)
    assert 2 * (low if below < 0.5 else high) == pytest.approx(CHI_SQUARE[freedom, below], abs=6e-4)


def test_no_events_have_a_lower_limit_of_zero() -> None:
    """2 degrees of freedom, 0.975: 7.378."""
    low, high = poisson_bounds(0)
    assert (low, 2 * high) == (0.0, pytest.approx(7.378, abs=6e-4))


def test_ten_interruptions_in_a_thousand_hours() -> None:
    """chi-square(0.025, 20) = 9.591 and (0.975, 22) = 36.781, so 2000 h over these."""
    found = mtbf(1000 * HOUR_NS, 10, running=True)
    assert found is not None
    assert found.ns == 100 * HOUR_NS
    assert found.low_ns == pytest.approx(2000 / 36.781 * HOUR_NS, rel=1e-4)
    assert found.high_ns == pytest.approx(2000 / 9.591 * HOUR_NS, rel=1e-4)


def test_without_an_interruption_there_is_only_a_lower_bound() -> None:
    """chi-square(0.95, 2) = 5.991: the rule of three."""
    found = mtbf(1000 * HOUR_NS, 0, running=True)
    assert found is not None
    assert (found.ns, found.high_ns) == (None, None)
    assert found.low_ns == pytest.approx(2000 / 5.991 * HOUR_NS, rel=1e-4)


def test_no_time_gives_no_estimate() -> None:
    assert mtbf(0, 0, running=True) is None


def test_thousands_of_interruptions_have_the_interval_of_the_normal_distribution() -> None:
    """About n +- 1.96 sqrt(n), shifted by half an event and the skewness."""
    low, high = poisson_bounds(10_000)
    assert low == pytest.approx(10_000 - 195.0, abs=1.0)
    assert high == pytest.approx(10_000 + 198.0, abs=1.0)
