"""Slow steps, compared with the median of earlier ones, and a step time that rises for good."""

import numpy as np

from traincope.live.node.remembered import NUM_REMEMBERED, ChangedSteps, Rise, SlowSteps

MS = 1_000_000


def test_a_slow_step_is_found_by_comparison_with_earlier_steps() -> None:
    slow = SlowSteps([100] * 15)
    assert slow.judge([1000]) == [None]  # 15 steps are too few to judge by
    assert slow.judge([150, 151, 100]) == [None, 1.51, None]


def test_the_median_follows_the_latest_steps() -> None:
    slow = SlowSteps([100] * NUM_REMEMBERED)
    assert slow.judge([300] * NUM_REMEMBERED) == [3.0] * NUM_REMEMBERED
    assert slow.judge([300]) == [None]


def lengths(*medians_ms: int, count: int = 40) -> list[tuple[int, int]]:
    """`count` steps around each median."""
    random = np.random.default_rng(0)
    values = [int(median * MS + random.integers(-MS, MS)) for median in medians_ms for _ in range(count)]
    return list(enumerate(values))


def judged(steps: list[tuple[int, int]], *, at_once: int) -> list[Rise]:
    changed = ChangedSteps()
    results = [changed.judge(steps[at : at + at_once]) for at in range(0, len(steps), at_once)]
    return [rise for rise in results if rise is not None]


def test_a_rise_is_found_once_at_its_first_step() -> None:
    (rise,) = judged(lengths(60, 90, 90), at_once=5)
    assert rise.step == 40
    assert (round(rise.before_ns / MS), round(rise.after_ns / MS)) == (60, 90)


def test_each_rise_is_found() -> None:
    assert [rise.step for rise in judged(lengths(60, 90, 140), at_once=1)] == [40, 80]


def test_shorter_steps_and_single_slow_steps_are_no_rise() -> None:
    assert judged(lengths(90, 60), at_once=5) == []
    steady = lengths(60, 60, 60)
    steady[30:100:10] = [(step, 10 * ns) for step, ns in steady[30:100:10]]
    assert judged(steady, at_once=5) == []
