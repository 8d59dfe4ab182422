"""Dropped and guessed steps, and the recorder's overhead."""

from dataclasses import replace

from tests.timeline.build import rank, step, timeline
from traincope.analysis import RecorderOverhead, dropped_steps, guessed_steps, recorder_overhead
from traincope.events import Flag
from traincope.store import RankRecords


def with_steps(number: int, *numbers: int) -> RankRecords:
    return rank(number, *(step(n, 10 * n, 10 * n + 10) for n in numbers))


def test_dropped_steps_are_merged_over_ranks() -> None:
    assert dropped_steps(timeline(with_steps(0, 0, 1, 5, 6), with_steps(1, 0, 4, 5, 9))) == ((1, 4), (6, 8))


def test_a_late_begin_or_early_end_is_not_a_drop() -> None:
    assert dropped_steps(timeline(with_steps(0, 3, 4, 5), with_steps(1, 0, 1, 2, 3), rank(2))) == ()


def test_a_step_is_guessed_if_any_rank_guessed_it() -> None:
    exact, guessed = step(0, 0, 10), step(1, 10, 20, flags=Flag.GUESSED)
    assert guessed_steps(timeline(rank(0, exact, guessed), rank(1, exact, step(1, 10, 20)))) == 1


def test_recorder_overhead_is_summed_over_ranks_and_none_if_not_measured() -> None:
    measured = [rank(number, replace(step(0, 0, 10), value=3), replace(step(1, 10, 20), value=4)) for number in (0, 1)]
    assert recorder_overhead(timeline(*measured)) == RecorderOverhead(total_ns=14, per_step_ns=3, ratio=14 / 40)
    assert recorder_overhead(timeline(rank(0, step(0, 0, 10)))) is None
