"""The significance test, by hand and by many random trials."""

from math import sqrt

import numpy as np
import pytest

from traincope.analysis.diff.significance import BLOCKS, LEVEL, MAX_CORRELATION, adjusted, blocks, compare, location
from traincope.analysis.student import student_tail
from traincope.arrays import Floats

ALTERNATING = np.array([-1.0, 1.0] * (BLOCKS // 2))
"""Blocks around 0 whose neighbours are correlated by -0.9."""


def stretched(means: Floats, steps: int = 5) -> Floats:
    """Steps whose blocks have these means."""
    return np.repeat(means, steps)


def test_blocks_hold_all_steps_in_stretches_of_about_equal_length() -> None:
    """25 steps are 10 blocks of 2 or 3."""
    values = np.arange(25.0)
    run = blocks(values)
    assert (25 * run.shares).round().tolist() == [2, 3, 2, 3, 2, 3, 2, 3, 2, 3]
    assert run.means[:2].tolist() == [0.5, 3.0]
    assert run.location == pytest.approx(12.0)
    assert blocks(np.array([4.0, 6.0])).means.tolist() == [4.0, 6.0]


def test_a_single_outlier_counts_as_the_next_farthest_block() -> None:
    """Distances from the median 0 are 1, but for one block of 1000: it counts as 5 spreads, 5 * 1.4826."""
    means = np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1000.0])
    middle = float(np.median(means))
    spread = 1.4826 * float(np.median(np.abs(means - middle)))
    assert location(means) == pytest.approx((means[:9].sum() + middle + 5 * spread) / 10)
    assert location(np.array([0.0, 1.0, 2.0, 3.0, 4.0])) == 2.0
    several = np.array([0.0, 0.1, 0.0, 0.1, 0.0, 0.1, 0.0, 0.1, 1000.0, 1000.0])
    assert location(several) == pytest.approx(several.mean())


def test_the_test_is_welchs_with_a_larger_variance() -> None:
    """Alternating blocks have a negative correlation, which counts as 0: r is 1.75 / sqrt(10)."""
    before, after = stretched(100 + ALTERNATING), stretched(101.7 + ALTERNATING)
    result = compare(before, after)
    bound = 1.75 / sqrt(10)
    error = sqrt(2 * (10 / 9) / 10 * (1 + bound) / (1 - bound))
    assert (result.before, result.after) == pytest.approx((100.0, 101.7))
    assert result.p == pytest.approx(student_tail(1.7 / error, 18))
    assert result.interval == pytest.approx((1.7 - 2.101 * error, 1.7 + 2.101 * error), rel=1e-3)
    assert result.entries_needed is None


@pytest.mark.parametrize(("t", "freedom", "p"), [(2.878, 18, 0.01), (3.250, 9, 0.01), (63.657, 1, 0.01), (0, 5, 1)])
def test_students_tail_is_that_of_the_tables(t: float, freedom: int, p: float) -> None:
    assert student_tail(t, freedom) == pytest.approx(p, rel=1e-3)
    assert student_tail(-t, freedom) == student_tail(t, freedom)


def test_equal_runs_have_p_1_and_constant_ones_that_differ_almost_0() -> None:
    same = np.full(50, 5.0)
    assert compare(same, same).p == 1.0
    assert compare(same, same + 1e-12).p == 1.0
    assert (compare(same, same + 1).p or 0) < 1e-9


def test_few_steps_are_not_tested() -> None:
    before, after = stretched(ALTERNATING)[:49], stretched(50 + ALTERNATING)
    result = compare(before, after)
    assert (result.p, result.interval, result.entries_needed) == (None, None, 50)
    assert result.change > 49


def test_steps_that_drift_show_only_what_is_far_beyond_their_drift() -> None:
    """Blocks that rise steadily are correlated by 0.7 + 0.1: (1 + 0.8) / (1 - 0.8) times as many steps are needed."""
    rising = stretched(np.arange(10.0))
    near, far = compare(rising, rising + 10), compare(rising, rising + 100)
    assert near.p is None
    assert near.entries_needed == pytest.approx(9 * 50, abs=1)
    error = sqrt(2 * (82.5 / 9) / 10 * (1 + MAX_CORRELATION) / (1 - MAX_CORRELATION))
    assert far.p == pytest.approx(student_tail(100 / error, 18))
    assert (far.p or 1) < 1e-6


def test_each_of_several_tests_counts() -> None:
    """Holm: the smallest p times 4, the next times 3; a later one is never smaller. What is not tested counts, too."""
    assert adjusted([0.01, 0.001, None, 0.4]) == pytest.approx([0.03, 0.004, None, 0.8])
    assert adjusted([0.02, 0.02]) == pytest.approx([0.04, 0.04])
    assert adjusted([]) == []


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.9])
def test_equal_runs_differ_no_more_often_than_the_level(correlation: float) -> None:
    """At a level of 1 %, more than 10 of 300 occur in one trial of 10,000. `make bench-diff` simulates more."""
    random = np.random.default_rng(3)
    pairs = [[correlated(random, 60, correlation) for _ in range(2)] for _ in range(300)]
    assert sum((compare(before, after).p or 1) <= LEVEL for before, after in pairs) <= 10


def test_a_change_of_two_spreads_is_found_in_most_runs() -> None:
    random, num_detected = np.random.default_rng(4), 0
    for _ in range(60):
        before, after = (mean + random.normal(size=100) for mean in (0, 2))
        num_detected += (compare(before, after).p or 1) <= LEVEL
    assert num_detected >= 50


def correlated(random: np.random.Generator, steps: int, correlation: float) -> Floats:
    values = random.normal(size=steps)
    values[1:] *= sqrt(1 - correlation**2)
    for at in range(1, steps):
        values[at] += correlation * values[at - 1]
    return values
