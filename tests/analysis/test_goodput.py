"""What became of a job's time, over attempts whose every second is known."""

from dataclasses import replace

import pytest

from tests.timeline.build import Row, clock, phase, rank, run, step
from traincope.analysis.goodput import Goodput, goodput
from traincope.events import OPEN, Phase
from traincope.store import Attempt
from traincope.store.attempts import summarise
from traincope.timeline import build_timeline

S = 1_000_000_000


def attempt(number: int, *rows: Row, ending: str | None = "ValueError") -> Attempt:
    records = rank(0, *rows)
    return summarise(records.thread("main"), names=records.names, number=number, last_ns=0, endings={0: ending})


def steps(first_s: int, count: int) -> list[Row]:
    """Of ten seconds each."""
    return [step(at, (first_s + 10 * at) * S, (first_s + 10 * at + 10) * S) for at in range(count)]


def save(start_s: int, *, step_number: int = -1) -> Row:
    return replace(
        phase(Phase.CHECKPOINT_STALL, start_s * S, (start_s + 1) * S, at=step_number), name="save checkpoint"
    )


def load(start_s: int) -> Row:
    return replace(phase(Phase.CHECKPOINT_STALL, start_s * S, (start_s + 2) * S), name="load checkpoint")


def job(*earlier: Attempt, last: list[Row]) -> Goodput:
    whole = goodput(build_timeline(replace(run(replace(rank(0, *last), attempt=len(earlier))), earlier=earlier)))
    assert whole is not None
    return whole


def started(at_s: int) -> Row:
    """The first record of an attempt."""
    return clock(at_s * S, at_s * S)


def test_one_attempt_is_startup_and_steps() -> None:
    """5 s of startup, 3 steps of 10 s, of which 1 s is a checkpoint and 2 s an evaluation."""
    rows = [started(0), *steps(5, 3), save(20, step_number=1), phase(Phase.EVALUATION, 30 * S, 32 * S, at=2)]
    whole = job(last=rows)
    assert (whole.elapsed_ns, whole.startup_ns, whole.restart_ns) == (35 * S, 5 * S, 0)
    assert (whole.steps_done, whole.steps_lost) == (3, 0)
    assert (whole.checkpoint_stall_ns, whole.evaluation_ns) == (S, 2 * S)
    assert whole.productive_ns == 27 * S
    assert whole.productive_ratio == pytest.approx(27 / 35)


def test_steps_after_the_last_checkpoint_are_lost_at_a_restart_that_loads_it() -> None:
    """4 steps, saved after the second; the next attempt begins 10 s later, loads for 2 s, makes 2 more."""
    first = attempt(0, started(0), *steps(0, 4), save(20, step_number=2), step(4, 40 * S, OPEN))
    whole = job(first, last=[started(50), load(50), *steps(52, 2)])
    assert (whole.steps_done, whole.steps_lost) == (6, 2)
    assert whole.restart_ns == 12 * S
    assert whole.lost_ns == 19 * S  # of two steps, without the second in which was saved
    assert whole.productive_ns == (39 + 20 - 19) * S
    assert [one.number for one in whole.attempts] == [0, 1]


def test_without_any_checkpoint_all_of_an_attempt_is_lost() -> None:
    whole = job(attempt(0, started(0), *steps(0, 4)), last=[started(50), *steps(51, 2)])
    assert (whole.steps_lost, whole.lost_ns, whole.productive_ns) == (4, 40 * S, 20 * S)


def test_where_an_attempt_went_on_is_unknown_if_it_loaded_nothing_that_was_seen() -> None:
    first = attempt(0, started(0), *steps(0, 4), save(20, step_number=2))
    whole = job(first, last=[started(50), *steps(51, 2)])
    assert (whole.steps_lost, whole.lost_ns, whole.productive_ns, whole.productive_ratio) == (None, None, None, None)


def test_a_checkpoint_that_was_not_finished_keeps_nothing() -> None:
    first = attempt(0, started(0), *steps(0, 2), replace(save(20), end_ns=OPEN))
    assert first.kept_steps is None


def test_of_an_attempt_that_ended_well_nothing_is_lost() -> None:
    whole = job(attempt(0, started(0), *steps(0, 4), ending="clean"), last=[started(50), *steps(51, 2)])
    assert whole.steps_lost == 0


def test_without_a_step_there_is_no_goodput() -> None:
    assert goodput(build_timeline(run(rank(0, started(0))))) is None
