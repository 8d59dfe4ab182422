"""Gaps of a recorded pipeline step and its theory, computed by hand."""

from itertools import pairwise

from traincope.analysis.pipeline.gaps import IMBALANCE, JITTER, SCHEDULE, Gap, recorded_schedule, theoretical_schedule
from traincope.plan.pipeline.actions import Action
from traincope.plan.pipeline.schedule import TimedAction, Timetable


def ran(kind: str, stage: int, microbatch: int, start: int, end: int) -> TimedAction:
    return TimedAction(Action(kind, stage, microbatch), start, end)


def gap(term: str, start_ns: int, end_ns: int) -> Gap:
    return Gap(term=term, start_ns=start_ns, end_ns=end_ns)


def gpipe(*, second: int = 10, late: int = 0) -> Timetable:
    """Build two stages, one microbatch, F and B: stage 0 takes 10 each, stage 1 `second` each, and begins `late`."""
    turn = 10 + late + second
    rows = {
        0: (ran("F", 0, 0, 0, 10), ran("B", 0, 0, turn + second, turn + second + 10)),
        1: (ran("F", 1, 0, 10 + late, turn), ran("B", 1, 0, turn, turn + second)),
    }
    return Timetable(rows=rows, span=turn + second + 10)


def test_every_gap_is_the_schedules_with_equal_stages_and_free_messages() -> None:
    schedule = recorded_schedule(gpipe())
    assert schedule is not None
    assert schedule.gaps == {0: (gap(SCHEDULE, 10, 30),), 1: (gap(SCHEDULE, 0, 10), gap(SCHEDULE, 30, 40))}


def test_the_addition_of_a_slower_stage_is_imbalance() -> None:
    """Stage 1 takes 20: the mean is 15, so theory leaves rank 0 idle for 2 x 15; its own medians for 2 x 20."""
    schedule = recorded_schedule(gpipe(second=20))
    assert schedule is not None
    assert schedule.gaps[0] == (gap(SCHEDULE, 10, 40), gap(IMBALANCE, 40, 50))
    assert schedule.gaps[1] == (gap(SCHEDULE, 0, 10), gap(SCHEDULE, 50, 60))


def test_the_unexplained_rest_is_jitter() -> None:
    """Stage 1 begins 5 late: its first gap is 15, in theory 10; rank 0 waits 25, in theory 20."""
    schedule = recorded_schedule(gpipe(late=5))
    assert schedule is not None
    assert schedule.gaps[0] == (gap(SCHEDULE, 10, 30), gap(JITTER, 30, 35))
    assert schedule.gaps[1] == (gap(SCHEDULE, 0, 10), gap(JITTER, 10, 15), gap(SCHEDULE, 35, 45))


def test_gaps_and_actions_fill_every_row() -> None:
    table = gpipe(second=17, late=3)
    schedule = recorded_schedule(table)
    assert schedule is not None
    for rank, row in table.rows.items():
        borders = sorted([(run.start, run.end) for run in row] + [(g.start_ns, g.end_ns) for g in schedule.gaps[rank]])
        assert borders[0][0] == 0
        assert borders[-1][1] == table.span
        assert all(before[1] == after[0] for before, after in pairwise(borders))


def test_theory_gives_every_stage_the_mean_and_messages_no_time() -> None:
    schedule = theoretical_schedule(gpipe(second=20, late=7))
    assert schedule is not None
    assert schedule.timetable.span == 60
    assert schedule.timetable.rows == {
        0: (ran("F", 0, 0, 0, 15), ran("B", 0, 0, 45, 60)),
        1: (ran("F", 1, 0, 15, 30), ran("B", 1, 0, 30, 45)),
    }
    assert schedule.gaps == {0: (gap(SCHEDULE, 15, 45),), 1: (gap(SCHEDULE, 0, 15), gap(SCHEDULE, 45, 60))}


def test_an_order_that_cannot_run_has_no_gaps_and_no_theory() -> None:
    rows = {0: (ran("F", 0, 0, 10, 20),), 1: (ran("B", 1, 0, 0, 5), ran("F", 1, 0, 20, 30))}
    impossible = Timetable(rows=rows, span=30)
    assert recorded_schedule(impossible) is None
    assert theoretical_schedule(impossible) is None
