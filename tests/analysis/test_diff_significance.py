"""What chance would do, by hand and by many trials of it."""

import numpy as np
import pytest
from numpy.typing import NDArray

from traincope.analysis.diff_significance import block_length, blocks, compare, correlation_time, location

Floats = NDArray[np.float64]
LEVEL = 0.01


def column(*values: float) -> Floats:
    return np.array(values, dtype=float)[:, None]


def test_of_five_and_five_that_do_not_overlap_two_deals_in_252_are_as_far_apart() -> None:
    """That one, and the one that deals them the other way round."""
    found = compare(column(10, 11, 12, 13, 14), column(20, 21, 22, 23, 24))
    assert found.before.tolist() == [12.0]
    assert found.change.tolist() == [10.0]
    assert found.p.tolist() == pytest.approx([2 / 252])
    assert found.interval[0] > 7
    assert found.interval[1] < 13


def test_what_is_the_same_differs_in_every_deal_as_much() -> None:
    same = column(5, 5, 5, 5, 5)
    assert compare(same, same).p.tolist() == [1.0]


def test_the_one_term_that_moved_is_told_from_those_that_did_not() -> None:
    """Step and terms: the second one takes 10 more, the others what they took, in another order."""
    noise, moved = [1.0, 2.0, 3.0, 4.0, 5.0], [11.0, 12.0, 13.0, 14.0, 15.0]
    before = np.array([noise, noise, noise[::-1]]).T
    after = np.array([moved, moved, noise[::-1]]).T
    found = compare(before, after)
    assert found.p.tolist() == pytest.approx([2 / 252, 2 / 252, 1.0])


def test_a_hiccup_is_pulled_in_to_five_spreads() -> None:
    """The spread of 1, 2, 3, 4, 1000 is 1.4826 times 1, the median distance from 3."""
    assert location(column(1, 2, 3, 4, 1000)).tolist() == pytest.approx([(1 + 2 + 3 + 4 + 3 + 5 * 1.4826) / 5])
    assert location(column(0, 0, 0, 0, 50)).tolist() == [10.0]


def test_blocks_are_means_of_consecutive_steps_the_first_ones_left_over() -> None:
    assert blocks(column(9, 1, 3, 5, 7), 2).tolist() == [[2.0], [6.0]]
    assert blocks(column(1, 2), 3).shape == (0, 1)


def test_independent_and_constant_steps_are_compared_one_by_one() -> None:
    """Noise may look as if it depended on itself."""
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
    for one in noise.tolist():
        values.append(factor * values[-1] + one)
    return np.array(values[-length:])


def test_alike_runs_are_told_apart_no_more_often_than_the_level_says() -> None:
    """At a level of 1 % more than 7 of 200 come in one trial of 10,000; and so of any of their terms."""
    random, steps, terms = np.random.default_rng(3), 0, 0
    for _ in range(200):
        own = [random.normal(size=(6, 12)) for _ in range(2)]
        found = compare(*(np.column_stack([each.sum(axis=1), each]) for each in own))
        steps += bool(found.p[0] <= LEVEL)
        terms += bool((found.p[1:] <= LEVEL).any())
    assert steps <= 7
    assert terms <= 7


def test_a_change_of_three_spreads_is_found_nearly_always() -> None:
    random, found = np.random.default_rng(4), 0
    for _ in range(40):
        found += bool(compare(random.normal(size=(8, 1)), 3 + random.normal(size=(8, 1))).p[0] <= LEVEL)
    assert found >= 36
