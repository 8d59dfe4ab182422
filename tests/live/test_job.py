"""What the job's time went to, by the rows and marks of windows."""

from dataclasses import replace

import pytest

from tests.live.told import told
from tests.live.windows import MS, quiet, ranks, records, statuses, window
from traincope import metrics
from traincope.analysis import Fault, FaultKind
from traincope.live.samples import Moment
from traincope.live.state import State, advance, begin
from traincope.live.window import RankState, Window
from traincope.store import Attempt

FIRST = window(records(ranks(0, 1)))
"""Steps 0 and 1, from 0 to 200 ms; it began at 0."""
SECOND_NS = 1_000 * MS


def mark(what: str, at_ms: int, *, lasted_ms: int = 0, step: int | None = None, kind: FaultKind | None = None) -> Fault:
    kind = kind or FaultKind.CHECKPOINT
    return Fault(kind=kind, at_ns=at_ms * MS, ranks=(0,), step=step, what=what, lasted_ns=lasted_ms * MS)


def after(*marks: Fault, before: Window = FIRST) -> State:
    return advance(begin(before), quiet(before, faults=marks))


def at(seconds: float) -> Moment:
    return Moment(monotonic_ns=round(seconds * SECOND_NS), wall_ns=round(seconds * SECOND_NS), cpu_ns=0)


def with_last_record(window: Window, seconds: float, *, state: RankState = RankState.ALIVE) -> Window:
    made = records(ranks(0, 1)).ranks
    return replace(window, ranks=tuple(statuses(made, state=state, last_ns=round(seconds * SECOND_NS))))


def test_the_parts_sum_to_the_time_from_the_first_record_to_the_last() -> None:
    """Of 1 s until the last record: 200 ms of steps, 300 of saving, 100 of evaluation, 400 of nothing."""
    saved = mark("save checkpoint", 250, lasted_ms=300)
    evaluated = mark("evaluation", 600, lasted_ms=100, kind=FaultKind.EVALUATION)
    found = told(advance(begin(FIRST), quiet(with_last_record(FIRST, 1.0), faults=(saved, evaluated))), moment=at(9))
    assert found.of(metrics.JOB_TIME) == {
        ("productive",): 0.2,
        ("lost",): 0.0,
        ("startup",): 0.0,
        ("restart",): 0.0,
        ("checkpoint_stall",): 0.3,
        ("evaluation",): 0.1,
        ("other",): 0.4,
    }
    assert found[metrics.GOODPUT] == 0.2


@pytest.mark.parametrize("jump_seconds", [-3_600, 3_600])
def test_setting_the_hosts_clock_makes_the_job_no_older(jump_seconds: int) -> None:
    state = advance(begin(FIRST), quiet(with_last_record(FIRST, 1.0)))
    jumped = replace(at(9), wall_ns=round((9 + jump_seconds) * SECOND_NS))
    assert told(state, moment=jumped).of(metrics.JOB_TIME) == told(state, moment=at(9)).of(metrics.JOB_TIME)
    assert sum(told(state, moment=jumped).of(metrics.JOB_TIME).values()) == 1.0


def test_a_checkpoint_within_a_step_is_none_of_its_productive_time() -> None:
    """Step 2 takes 100 ms, of which 40 are a save."""
    (row, *_) = (row for row in FIRST.rows if row.rank == 0)
    saving = replace(row, step=2, start_ns=200 * MS, terms={"forward": 60 * MS, "checkpoint_stall": 40 * MS})
    saved = mark("save checkpoint", 250, lasted_ms=40, step=2)
    state = advance(begin(FIRST), quiet(with_last_record(FIRST, 0.3), rows=(saving,), faults=(saved,)))
    found = told(state, moment=at(1)).of(metrics.JOB_TIME)
    assert (found["productive",], found["checkpoint_stall",], found["other",]) == (0.26, 0.04, 0.0)


def test_time_before_the_first_step_is_startup_or_after_another_attempt_a_restart() -> None:
    """An attempt of 10 steps that saved 6 of them ended half a second before this one began, which loaded them."""
    before = Attempt(
        number=0,
        began_ns=-4_000 * MS,
        first_step_ns=-3_000 * MS,
        last_ns=-500 * MS,
        num_steps=10,
        steps_ns=1_000 * MS,
        kept_steps=6,
        kept_ns=600 * MS,
        loaded=False,
        checkpoint_stall_ns=0,
        evaluation_ns=0,
        endings={0: None},
    )
    late = replace(FIRST, rows=tuple(replace(row, start_ns=row.start_ns + 700 * MS) for row in FIRST.rows))
    loading = mark("load checkpoint", 100, lasted_ms=50)
    state = begin(replace(with_last_record(late, 1.0), faults=(loading,)), earlier=(before,))
    found = told(state, moment=at(1)).of(metrics.JOB_TIME)
    assert found[("startup",)] == 1.0
    assert found[("restart",)] == 0.5 + 0.7
    assert found[("lost",)] == 0.4
    assert found[("productive",)] == 0.6 + 0.2
    assert found[("checkpoint_stall",)] == 0.0, "it was loaded before the first step: that is the restart"
    assert sum(found.values()) == 5.0


def test_a_checkpoint_that_its_ranks_save_together_is_one_and_its_age_counts_from_its_end() -> None:
    """Rank 1 was seen to save step 7 a window later; step 9 was saved by another thread, which says when."""
    together = (mark("save checkpoint", 300, lasted_ms=100, step=7), mark("save checkpoint", 420, lasted_ms=30, step=7))
    state = after(together[0])
    assert told(state, moment=at(2.4))[metrics.CHECKPOINT_AGE] == 2.0
    state = advance(state, quiet(FIRST, faults=together[1:]))
    found = told(state, moment=at(2.45))
    assert (found[metrics.CHECKPOINTS], found[metrics.CHECKPOINT_AGE]) == (1, 2.0)
    beside = (mark("async_save checkpoint", 500, lasted_ms=5, step=9), mark("checkpoint saved", 900, step=9))
    state = advance(state, quiet(FIRST, faults=(beside[0], replace(beside[1], kind=FaultKind.EVENT))))
    found = told(state, moment=at(1))
    assert (found[metrics.CHECKPOINTS], found[metrics.CHECKPOINT_AGE]) == (2, 0.1)


def test_without_a_checkpoint_the_age_is_the_attempts_and_an_ended_job_grows_no_older() -> None:
    assert told(begin(FIRST), moment=at(3))[metrics.CHECKPOINT_AGE] == 3.0
    ended = begin(with_last_record(FIRST, 1.0, state=RankState.ENDED))
    assert told(ended, moment=at(3)).of(metrics.CHECKPOINT_AGE) == {}
    assert sum(told(ended, moment=at(3)).of(metrics.JOB_TIME).values()) == 1.0


def test_an_attempt_that_began_anew_leaves_unknown_what_was_lost() -> None:
    before = Attempt(
        number=0,
        began_ns=-2_000 * MS,
        first_step_ns=-2_000 * MS,
        last_ns=-1_000 * MS,
        num_steps=10,
        steps_ns=1_000 * MS,
        kept_steps=None,
        kept_ns=0,
        loaded=False,
        checkpoint_stall_ns=0,
        evaluation_ns=0,
        endings={0: None},
    )
    found = told(begin(FIRST, earlier=(before,)), moment=at(1))
    assert found.of(metrics.GOODPUT) == {}
    assert {part for (part,) in found.of(metrics.JOB_TIME)}.isdisjoint({"productive", "lost"})
