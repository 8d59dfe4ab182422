"""Fits and outliers against lines and sets whose answer is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincope.preflight.robust import Limit, fit, median_deviation, slow_ranks


@given(latency=st.floats(1e-6, 1e-2), bandwidth=st.floats(1e6, 1e12))
def test_a_line_is_fitted_exactly(latency: float, bandwidth: float) -> None:
    sizes = (8.0, 1 << 12, 1 << 20, 1 << 26)
    fitted = fit({num_bytes: latency + num_bytes / bandwidth for num_bytes in sizes})
    assert fitted is not None
    assert fitted.error_ratio < 1e-6
    assert fitted.seconds(1 << 16) == pytest.approx(latency + (1 << 16) / bandwidth, rel=1e-5)


def test_constant_times_have_a_latency_and_no_bandwidth() -> None:
    fitted = fit({8.0: 2e-3, 1024.0: 2e-3})
    assert fitted is not None
    assert (fitted.latency_seconds, fitted.bytes_per_second) == (pytest.approx(2e-3), None)


def test_falling_times_give_no_negative_bandwidth() -> None:
    fitted = fit({8.0: 3e-3, 1024.0: 1e-3})
    assert fitted is not None
    assert fitted.bytes_per_second is None
    assert fitted.error_ratio > 0.4


def test_times_through_the_origin_have_no_latency() -> None:
    fitted = fit({1e6: 1e-3, 2e6: 2e-3})
    assert fitted is not None
    assert fitted.latency_seconds == pytest.approx(0.0, abs=1e-12)
    assert fitted.bytes_per_second == pytest.approx(1e9)


@pytest.mark.parametrize("points", [{}, {8.0: 1e-3}])
def test_one_size_is_no_line(points: dict[float, float]) -> None:
    assert fit(points) is None


def test_the_median_deviation_ignores_one_wild_value() -> None:
    assert median_deviation([1.0, 2.0, 3.0, 4.0, 1000.0]) == 1.0


@pytest.mark.parametrize(
    ("seconds", "named"),
    [
        ([1.0, 1.0, 2.0, 1.0], {2: 2.0}),
        ([1.0, 1.1, 1.2, 1.3], {}),  # below the floor
        ([1.0, 2.0, 3.0, 4.5], {}),  # beyond the floor, and within the spread
        ([1.0, 5.0], {}),  # of two, either may be wrong
    ],
)
def test_a_rank_is_slow_beyond_the_floor_and_the_spread(seconds: list[float], named: dict[int, float]) -> None:
    assert slow_ranks(dict(enumerate(seconds)), limit=Limit(ratio=1.4)) == named
