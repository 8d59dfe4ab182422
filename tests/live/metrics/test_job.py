"""Parts of the job's time, from the rows and marks of windows."""

from dataclasses import replace

import pytest

from tests.live.sample_table import sample_table
from tests.live.windows import MS, quiet, ranks, records, statuses, window
from traincope.analysis import Fault, FaultKind
from traincope.live.metrics.samples import Moment
from traincope.live.metrics.state import State, advance, begin
from traincope.live.window import RankState, Window
from traincope.metrics import catalogue
from traincope.store import Attempt, LauncherNote

FIRST = window(records(ranks(0, 1)))
"""Steps 0 and 1, from 0 to 200 ms. The attempt began at 0."""
SECOND_NS = 1_000 * MS


def mark(what: str, at_ms: int, *, lasted_ms: int = 0, step: int | None = None, kind: FaultKind | None = None) -> Fault:
    kind = kind or FaultKind.CHECKPOINT
    return Fault(kind=kind, at_ns=at_ms * MS, ranks=(0,), step=step, what=what, lasted_ns=lasted_ms * MS)


def after(*marks: Fault, before: Window = FIRST) -> State:
    return advance(begin(before), quiet(before, faults=marks))


def at(seconds: float) -> Moment:
    return Moment(monotonic_ns=round(seconds * SECOND_NS), wall_ns=round(seconds * SECOND_NS), cpu_ns=0)


def with_last_record(window: Window, seconds: float, *, state: RankState = RankState.ALIVE) -> Window:
    recorded = records(ranks(0, 1)).ranks
    return replace(window, ranks=tuple(statuses(recorded, state=state, last_ns=round(seconds * SECOND_NS))))


def test_the_parts_sum_to_the_time_from_first_to_last_event() -> None:
    """1 s until the last event: 200 ms steps, 300 ms saving, 100 ms evaluation, 400 ms other."""
    saved = mark("save checkpoint", 250, lasted_ms=300)
    evaluated = mark("evaluation", 600, lasted_ms=100, kind=FaultKind.EVALUATION)
    table = sample_table(
        advance(begin(FIRST), quiet(with_last_record(FIRST, 1.0), faults=(saved, evaluated))), moment=at(9)
    )
    assert table.of(catalogue.JOB_TIME) == {
        ("productive",): 0.2,
        ("skipped",): 0.0,
        ("rolled_back",): 0.0,
        ("lost",): 0.0,
        ("startup",): 0.0,
        ("restart",): 0.0,
        ("checkpoint_stall",): 0.3,
        ("evaluation",): 0.1,
        ("other",): 0.4,
    }
    assert table[catalogue.GOODPUT] == 0.2


@pytest.mark.parametrize("jump_seconds", [-3_600, 3_600])
def test_setting_the_host_clock_does_not_change_job_time(jump_seconds: int) -> None:
    state = advance(begin(FIRST), quiet(with_last_record(FIRST, 1.0)))
    jumped = replace(at(9), wall_ns=round((9 + jump_seconds) * SECOND_NS))
    assert sample_table(state, moment=jumped).of(catalogue.JOB_TIME) == sample_table(state, moment=at(9)).of(
        catalogue.JOB_TIME
    )
    assert sum(sample_table(state, moment=jumped).of(catalogue.JOB_TIME).values()) == 1.0


def test_a_checkpoint_inside_a_step_is_not_productive_time() -> None:
    """Step 2 takes 100 ms, of which 40 ms are a save."""
    (row, *_) = (row for row in FIRST.rows if row.rank == 0)
    saving = replace(row, step=2, start_ns=200 * MS, terms={"forward": 60 * MS, "checkpoint_stall": 40 * MS})
    saved = mark("save checkpoint", 250, lasted_ms=40, step=2)
    state = advance(begin(FIRST), quiet(with_last_record(FIRST, 0.3), rows=(saving,), faults=(saved,)))
    table = sample_table(state, moment=at(1)).of(catalogue.JOB_TIME)
    assert (table["productive",], table["checkpoint_stall",], table["other",]) == (0.26, 0.04, 0.0)


def test_time_before_the_first_step_is_startup_or_restart() -> None:
    """Attempt 0 had 10 steps and saved 6. It ended 0.5 s before this attempt, which loaded the checkpoint."""
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
    killed = LauncherNote(attempt=0, rank=0, exit_code=-9, first=True, at_wall_ns=0)
    state = begin(replace(with_last_record(late, 1.0), faults=(loading,)), earlier=(before,), notes=(killed,))
    samples = sample_table(state, moment=at(1))
    assert samples.of(catalogue.INTERRUPTIONS) == {("killed",): 1}
    assert samples.of(catalogue.BADPUT) == {("restart", "killed"): 1.2, ("lost", "killed"): 0.4}
    assert samples.of(catalogue.MTBF)["estimate",] == 3.5 + 1.0
    table = samples.of(catalogue.JOB_TIME)
    assert table[("startup",)] == 1.0
    assert table[("restart",)] == 0.5 + 0.7
    assert table[("lost",)] == 0.4
    assert table[("productive",)] == 0.6 + 0.2
    assert table[("checkpoint_stall",)] == 0.0, "loading before the first step belongs to the restart"
    assert sum(table.values()) == 5.0


def test_a_checkpoint_of_several_ranks_counts_once() -> None:
    """Rank 1 saves step 7 in a later window. Another thread saves step 9 and reports when it is done."""
    together = (mark("save checkpoint", 300, lasted_ms=100, step=7), mark("save checkpoint", 420, lasted_ms=30, step=7))
    state = after(together[0])
    assert sample_table(state, moment=at(2.4))[catalogue.CHECKPOINT_AGE] == 2.0
    state = advance(state, quiet(FIRST, faults=together[1:]))
    table = sample_table(state, moment=at(2.45))
    assert (table[catalogue.CHECKPOINTS], table[catalogue.CHECKPOINT_AGE]) == (1, 2.0)
    asynchronous = (mark("async_save checkpoint", 500, lasted_ms=5, step=9), mark("checkpoint saved", 900, step=9))
    state = advance(state, quiet(FIRST, faults=(asynchronous[0], replace(asynchronous[1], kind=FaultKind.EVENT))))
    table = sample_table(state, moment=at(1))
    assert (table[catalogue.CHECKPOINTS], table[catalogue.CHECKPOINT_AGE]) == (2, 0.1)


def test_without_a_checkpoint_its_age_is_that_of_the_attempt() -> None:
    assert sample_table(begin(FIRST), moment=at(3))[catalogue.CHECKPOINT_AGE] == 3.0
    ended = begin(with_last_record(FIRST, 1.0, state=RankState.ENDED))
    assert sample_table(ended, moment=at(3)).of(catalogue.CHECKPOINT_AGE) == {}
    assert sum(sample_table(ended, moment=at(3)).of(catalogue.JOB_TIME).values()) == 1.0


def test_lost_time_is_unknown_if_no_checkpoint_was_loaded() -> None:
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
    table = sample_table(begin(FIRST, earlier=(before,)), moment=at(1))
    assert table.of(catalogue.GOODPUT) == {}
    assert {part for (part,) in table.of(catalogue.JOB_TIME)}.isdisjoint({"productive", "lost"})
