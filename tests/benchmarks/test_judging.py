"""The interval of a measurement decides whether it keeps its budget."""

from argparse import ArgumentTypeError

import numpy as np
import pytest

from benchmarks import overhead
from benchmarks.judging import Judged, at_least, at_least_one, exit_code, judge, share_interval


@pytest.mark.parametrize(
    ("low", "high", "judged"),
    [
        (0.99, 1.01, Judged.PASSED),
        (1.00, 1.02, Judged.NOT_SHOWN),
        (0.50, 2.00, Judged.NOT_SHOWN),
        (1.02, 1.03, Judged.MISSED),
    ],
)
def test_only_an_interval_below_the_budget_passes(low: float, high: float, judged: Judged) -> None:
    assert judge(low, high, budget=1.01) is judged
    assert at_least(1 / high, 1 / low, budget=1 / 1.01) is judged


def test_a_command_succeeds_only_if_all_is_shown() -> None:
    assert exit_code([Judged.PASSED, Judged.PASSED]) == 0
    assert exit_code([Judged.PASSED, Judged.NOT_SHOWN]) == 1
    assert exit_code([Judged.MISSED]) == 1


@pytest.mark.parametrize("text", ["0", "-3"])
def test_a_score_of_no_trial_is_refused(text: str) -> None:
    assert at_least_one("3") == 3
    with pytest.raises(ArgumentTypeError):
        at_least_one(text)


def test_noise_neither_passes_nor_misses_the_recorders_own_time() -> None:
    """Blocks from 0.4 to 1.6 % around a budget of 1 %."""
    quiet, noisy = np.full(8, 0.004), np.linspace(0.004, 0.016, 8)
    assert overhead._verdict(quiet, 0.99, 1.0, 0.05) == "own passed, ratio passed"
    assert overhead._verdict(noisy, 0.99, 1.02, 0.05) == "own not shown, ratio not shown"


def test_the_interval_of_a_share_is_that_of_clopper_and_pearson() -> None:
    """Of no hit in n trials the upper bound is 1 - tail ** (1 / n); the others are from tables, at 99 %."""
    assert share_interval(0, 100) == pytest.approx((0.0, 1 - 0.005 ** (1 / 100)))
    assert share_interval(100, 100) == pytest.approx((0.005 ** (1 / 100), 1.0))
    assert share_interval(1, 10) == pytest.approx((0.0005, 0.5443), abs=1e-4)
    low, high = share_interval(20, 4_000)
    assert (low, high) == pytest.approx((0.0026, 0.0087), abs=2e-4)
