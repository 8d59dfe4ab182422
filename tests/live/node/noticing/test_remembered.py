"""Slow steps, compared with the median of earlier ones; a step time that rises for good; memory that grows."""

import numpy as np

from tests.timeline.build import Row, rank, step, timeline
from traincope.events import Kind, Phase
from traincope.live.node.noticing.remembered import (
    MAX_SAMPLES,
    NUM_REMEMBERED,
    ChangedSteps,
    GrowingMemory,
    Growth,
    Rise,
    SlowSteps,
)
from traincope.timeline import Timeline

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


MIB = 1 << 20


def samples(first: int, last: int, *, grows: int) -> Timeline:
    """Memory of rank 0, which stays, and of rank 1, which grows by `grows` bytes per step from 100 MiB."""
    ranks = [
        rank(number, step(first, 0, 100), *(look(at, 100 * MIB + number * grows * at) for at in range(first, last)))
        for number in (0, 1)
    ]
    return timeline(*ranks)


def look(at: int, num_bytes: int) -> Row:
    return Row(kind=Kind.MEMORY, start_ns=at, end_ns=at, name="resident", phase=Phase.NONE, value=num_bytes, step=at)


def test_memory_that_grows_over_several_windows_is_found_once() -> None:
    """A window has 10 steps. 64 samples after the first quarter are needed: the ninth window has them."""
    growing = GrowingMemory()
    found = [list(growing.judge(samples(at, at + 10, grows=MIB))) for at in range(0, 200, 10)]
    assert [bool(each) for each in found] == [number == 8 for number in range(20)]
    assert found[8] == [Growth(1, "resident", 89, 89, MIB, 189 * MIB)]


def test_samples_that_were_seen_before_count_once_and_are_bounded() -> None:
    growing = GrowingMemory()
    assert [list(growing.judge(samples(0, 60, grows=MIB))) for _ in range(4)] == [[]] * 4
    assert not list(growing.judge(samples(0, 3 * MAX_SAMPLES, grows=0)))
    assert all(len(each) <= 2 * MAX_SAMPLES for each in growing._samples.values())
