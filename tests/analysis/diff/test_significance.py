"""The significance test, by hand and by many random trials."""

import numpy as np
import pytest

from traincope.analysis.diff.significance import Blocks, block_length, blocks, compare, correlation_time, location
from traincope.arrays import Floats

LEVEL = 0.01


def column(*values: float) -> Floats:
    return np.array(values, dtype=float)[:, None]


def single(*values: float) -> Blocks:
    """Blocks of one entry each."""
    return blocks(column(*values), 1)


def test_two_of_252_permutations_are_as_extreme_as_disjoint_blocks() -> None:
    """The actual assignment and its reverse."""
    result = compare(single(10, 11, 12, 13, 14), single(20, 21, 22, 23, 24))
    assert result.before.tolist() == [12.0]
    assert result.change.tolist() == [10.0]
    assert result.p.tolist() == pytest.approx([2 / 252])
    assert result.interval[0] > 7
    assert result.interval[1] < 13


def test_equal_blocks_have_p_1() -> None:
    same = single(5, 5, 5, 5, 5)
    assert compare(same, same).p.tolist() == [1.0]


def test_only_the_changed_term_is_significant() -> None:
    """Step and terms: the first term takes 10 more, the second is the same in another order."""
    noise, moved = [1.0, 2.0, 3.0, 4.0, 5.0], [11.0, 12.0, 13.0, 14.0, 15.0]
    before = blocks(np.array([noise, noise, noise[::-1]]).T, 1)
    after = blocks(np.array([moved, moved, noise[::-1]]).T, 1)
    result = compare(before, after)
    assert result.p.tolist() == pytest.approx([2 / 252, 2 / 252, 1.0])


def test_an_outlier_is_clipped_to_five_spreads() -> None:
    """The spread of 1, 2, 3, 4, 1000 is 1.4826 times 1, the median distance from 3."""
    equal = np.ones(5)
    assert location(column(1, 2, 3, 4, 1000), equal).tolist() == pytest.approx([(1 + 2 + 3 + 4 + 3 + 5 * 1.4826) / 5])
    assert location(column(0, 0, 0, 0, 50), equal).tolist() == [10.0]
    assert location(column(1, 2, 3, 4, 5), np.array([6, 1, 1, 1, 1])).tolist() == [2.0]


def test_blocks_are_means_of_consecutive_steps_without_the_first_remainder() -> None:
    assert blocks(column(9, 1, 3, 5, 7), 2).means.tolist() == [[2.0], [6.0]]
    assert blocks(column(1, 2), 3).means.shape == (0, 1)
    weighted = blocks(column(9, 1, 3, 5, 7), 2, np.array([1, 1, 3, 2, 2]))
    assert (weighted.means.tolist(), weighted.weights.tolist()) == ([[2.5], [6.0]], [4, 4])


def test_independent_and_constant_steps_are_compared_one_by_one() -> None:
    """Noise may look correlated, so some of the 40 trials use longer blocks."""
    assert block_length([np.full(20, 7.0)] * 2) == 1
    random = np.random.default_rng(0)
    alone = sum(block_length([random.normal(size=25), random.normal(size=25)]) == 1 for _ in range(40))
    assert alone >= 24


def test_steps_that_depend_on_each_other_are_compared_in_blocks() -> None:
    """For x' = 0.8 x + noise the time is (1 + 0.8) / (1 - 0.8) = 9."""
    runs = [correlated(4_000, 0.8, seed=seed) for seed in (1, 2)]
    assert correlation_time(runs) == pytest.approx(9, rel=0.15)
    assert block_length([values[:200] for values in runs]) >= 14


def correlated(length: int, factor: float, *, seed: int) -> Floats:
    noise, values = np.random.default_rng(seed).normal(size=length + 100), [0.0]
    for value in noise.tolist():
        values.append(factor * values[-1] + value)
    return np.array(values[-length:])


def test_equal_runs_differ_no_more_often_than_the_level() -> None:
    """At a level of 1 %, more than 7 of 200 occur in one trial of 10,000, for the step and for any term."""
    random, steps, terms = np.random.default_rng(3), 0, 0
    for _ in range(200):
        runs = [random.normal(size=(6, 12)) for _ in range(2)]
        result = compare(*(blocks(np.column_stack([each.sum(axis=1), each]), 1) for each in runs))
        steps += bool(result.p[0] <= LEVEL)
        terms += bool((result.p[1:] <= LEVEL).any())
    assert steps <= 7
    assert terms <= 7


def test_a_change_of_three_spreads_is_found_nearly_always() -> None:
    random, num_detected = np.random.default_rng(4), 0
    for _ in range(40):
        before, after = (blocks(mean + random.normal(size=(8, 1)), 1) for mean in (0, 3))
        num_detected += bool(compare(before, after).p[0] <= LEVEL)
    assert num_detected >= 36
