"""Patterns of lateness over the steps, from excesses with a known pattern."""

import numpy as np
import pytest

from traincope.analysis.stragglers.patterns import Pattern, Shape, pattern
from traincope.arrays import Floats

MS = 1e6
STEPS = np.arange(1, 201)


def pattern_of(excess_ns: Floats, *, stretch: tuple[int, int] = (0, 200)) -> Pattern:
    noise = np.random.default_rng(3).normal(0, 0.5 * MS, len(excess_ns))
    return pattern(STEPS, excess_ns + noise, stretch=stretch, blurred=5)[0]


def test_a_steady_lateness_has_no_first_step() -> None:
    found = pattern_of(np.full(200, 10 * MS))
    assert (found.shape, found.first_step, found.last_step, found.late_steps) == (Shape.STEADY, None, None, 200)


def test_the_first_and_the_last_late_step_are_found() -> None:
    excess = np.zeros(200)
    excess[60:150] = 10 * MS
    found = pattern_of(excess, stretch=(55, 155))
    assert (found.shape, found.first_step, found.last_step, found.late_steps) == (Shape.STEADY, 61, 150, 90)


def test_growth_is_per_100_steps() -> None:
    """From 0 to 20 ms in 200 steps."""
    found = pattern_of(np.arange(200) * 0.1 * MS)
    assert found.shape is Shape.GROWING
    assert found.growth_ns_per_100_steps == pytest.approx(10 * MS, rel=0.1)


def test_a_period_is_found() -> None:
    found = pattern_of(np.where(np.arange(200) % 8 == 3, 40 * MS, 0.0))
    assert (found.shape, found.period_steps, found.late_steps) == (Shape.PERIODIC, 8, pytest.approx(25, abs=5))


def test_single_steps_in_no_order_are_irregular() -> None:
    excess = np.zeros(200)
    excess[np.random.default_rng(4).choice(200, 30, replace=False)] = 40 * MS
    found = pattern_of(excess)
    assert (found.shape, found.period_steps) == (Shape.IRREGULAR, None)
