"""Which steps a run lost, which it only guessed, and what recording them cost."""

from dataclasses import replace

from tests.timeline.build import rank, step, timeline
from traincope.analysis import OwnTime, dropped_steps, guessed_steps, own_time
from traincope.events import Flag
from traincope.store import RankRecords


def with_steps(number: int, *numbers: int) -> RankRecords:
    return rank(number, *(step(n, 10 * n, 10 * n + 10) for n in numbers))


def test_steps_lost_in_the_middle_are_named_once_for_all_ranks() -> None:
    assert dropped_steps(timeline(with_steps(0, 0, 1, 5, 6), with_steps(1, 0, 4, 5, 9))) == ((1, 4), (6, 8))


def test_a_rank_that_began_later_or_ended_sooner_has_dropped_nothing() -> None:
    assert dropped_steps(timeline(with_steps(0, 3, 4, 5), with_steps(1, 0, 1, 2, 3), rank(2))) == ()


def test_a_step_is_guessed_if_any_rank_guessed_it() -> None:
    told, guessed = step(0, 0, 10), step(1, 10, 20, flags=Flag.GUESSED)
    assert guessed_steps(timeline(rank(0, told, guessed), rank(1, told, step(1, 10, 20)))) == 1


def test_the_recorders_own_time_is_summed_over_ranks_and_absent_where_nobody_measured_it() -> None:
    measured = [rank(number, replace(step(0, 0, 10), value=3), replace(step(1, 10, 20), value=4)) for number in (0, 1)]
    assert own_time(timeline(*measured)) == OwnTime(total_ns=14, per_step_ns=3, ratio=14 / 40)
    assert own_time(timeline(rank(0, step(0, 0, 10)))) is None
