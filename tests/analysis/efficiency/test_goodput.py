"""Goodput of jobs whose every second is known."""

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import examples
from tests.timeline.build import Row, clock, phase, rank, run, step
from traincope.analysis.efficiency.goodput import Goodput, goodput
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.store import Attempt
from traincope.store.job.attempts import summarise
from traincope.timeline import build_timeline

S = 1_000_000_000


def attempt(
    number: int, *rows: Row, ending: str | None = "ValueError", last_s: int = 0, until_s: int | None = None
) -> Attempt:
    """`last_s`: of all ranks. `until_s`: begin of the next attempt."""
    records = rank(0, *rows)
    main, names = records.thread("main"), records.names
    until_ns = None if until_s is None else until_s * S
    times = {"last_ns": last_s * S, "until_ns": until_ns}
    return summarise(main, names=names, number=number, endings={0: ending}, details=DECLARED, **times)  # type: ignore[arg-type]


def steps(first_s: int, count: int) -> list[Row]:
    """Steps of ten seconds."""
    return [step(at, (first_s + 10 * at) * S, (first_s + 10 * at + 10) * S) for at in range(count)]


def save(start_s: int, *, step_number: int = -1) -> Row:
    return replace(
        phase(Phase.CHECKPOINT_STALL, start_s * S, (start_s + 1) * S, at=step_number), name="save checkpoint"
    )


def load(start_s: int) -> Row:
    return replace(phase(Phase.CHECKPOINT_STALL, start_s * S, (start_s + 2) * S), name="load checkpoint")


DECLARED: dict[int, dict[str, object]] = {
    **{number: {"step": number} for number in range(1, 9)},
    **{
        100 * to + 10 * undone + last: {"step": to, "undone": undone, "last": last, "why": "the loss is NaN"}
        for to, undone, last in product(range(1, 9), range(1, 9), range(9))
    },
}
"""Number of an event's details -> the details. Number 0 means no details."""


def resumed(at_s: int, *, after: int) -> Row:
    """The training declares that it continues after this step."""
    return Row(kind=Kind.EVENT, start_ns=at_s * S, end_ns=at_s * S, name="resumed", group=after)


def rolled_back(at_s: int, *, to: int, undone: int, last: int) -> Row:
    """The training declares that it went back to the state after step `to`; the recorder adds the rest."""
    number = 100 * to + 10 * undone + last
    return Row(kind=Kind.EVENT, start_ns=at_s * S, end_ns=at_s * S, name="rollback", group=number, step=last)


def job(*earlier: Attempt, last: list[Row]) -> Goodput:
    final = replace(rank(0, *last), attempt=len(earlier), details=DECLARED)
    result = goodput(build_timeline(replace(run(final), earlier=earlier)))
    assert result is not None
    assert_a_partition(result)
    return result


def assert_a_partition(result: Goodput) -> None:
    """The parts sum to the elapsed time, and none of them is negative."""
    unsaved = (result.startup_ns, result.restart_ns, result.checkpoint_stall_ns, result.evaluation_ns, result.other_ns)
    assert result.elapsed_ns == result.steps_ns + sum(unsaved)
    parts = [ns for ns in result.parts.values() if ns is not None]
    assert min(result.steps_ns, *parts) >= 0
    if result.reason is None:
        assert sum(parts) == result.elapsed_ns
        assert len(parts) == len(result.parts)


def started(at_s: int) -> Row:
    """The first record of an attempt."""
    return clock(at_s * S, at_s * S)


def test_one_attempt_is_startup_and_steps() -> None:
    """5 s of startup, 3 steps of 10 s, of which 1 s is a checkpoint and 2 s an evaluation."""
    rows = [started(0), *steps(5, 3), save(20, step_number=1), phase(Phase.EVALUATION, 30 * S, 32 * S, at=2)]
    result = job(last=rows)
    assert (result.elapsed_ns, result.startup_ns, result.restart_ns) == (35 * S, 5 * S, 0)
    assert (result.steps_done, result.steps_lost) == (3, 0)
    assert (result.checkpoint_stall_ns, result.evaluation_ns) == (S, 2 * S)
    assert result.productive_ns == 27 * S
    assert result.productive_ratio == pytest.approx(27 / 35)


def test_imported_traces_have_no_goodput() -> None:
    """They begin at any step of the job, so the time before their first mark is not a start-up."""
    records = run(rank(0, started(0), *steps(5, 3)))
    assert goodput(build_timeline(records)) is not None
    assert goodput(build_timeline(replace(records, info=replace(records.info, imported=True)))) is None


def test_steps_after_the_last_checkpoint_are_lost_at_a_restart_that_loads_it() -> None:
    """4 steps, saved after the second; the next attempt begins 10 s later, loads for 2 s, makes 2 more."""
    first = attempt(0, started(0), *steps(0, 4), save(20, step_number=2), step(4, 40 * S, OPEN))
    result = job(first, last=[started(50), load(50), *steps(52, 2)])
    assert (result.steps_done, result.steps_lost) == (6, 2)
    assert result.restart_ns == 12 * S
    assert result.lost_ns == 19 * S  # two steps, minus the second spent saving
    assert result.productive_ns == (39 + 20 - 19) * S
    assert [each.number for each in result.attempts] == [0, 1]


def test_a_step_is_kept_if_it_saved_after_its_optimizer() -> None:
    """4 steps, saved at 28 s in the third, whose optimizer took a second."""
    for optimized_s, lost in ((26, 1), (28, 2)):
        optimizer = phase(Phase.OPTIMIZER, optimized_s * S, (optimized_s + 1) * S, at=2)
        first = attempt(0, started(0), *steps(0, 4), optimizer, save(28, step_number=2))
        result = job(first, last=[started(50), load(50), *steps(52, 1)])
        assert (result.steps_done, result.steps_lost) == (5, lost)


def test_an_asynchronous_save_holds_the_steps_before_it_began() -> None:
    """5 steps; a save begins at 20 s, after the second, and ends at 38 s; another begins at 40 s and never ends."""
    begins = [replace(save(at), name="async_save checkpoint") for at in (20, 40)]
    ended = Row(kind=Kind.EVENT, start_ns=38 * S, end_ns=38 * S, name="checkpoint saved")
    first = attempt(0, started(0), *steps(0, 5), *begins, ended)
    result = job(first, last=[started(60), load(60), *steps(62, 1)])
    assert (result.steps_done, result.steps_lost, result.lost_ns) == (6, 3, (30 - 2) * S)


def test_the_training_declares_where_it_continued() -> None:
    """It lost the steps after that one, whatever was saved or loaded; of an older checkpoint their time is unknown."""
    first = attempt(0, started(0), *steps(0, 4), save(20, step_number=2))
    jobs = [job(first, last=[started(50), load(50), resumed(52, after=step), *steps(52, 1)]) for step in (2, 4, 1)]
    assert [(each.steps_lost, each.lost_ns) for each in jobs] == [(2, 19 * S), (0, 0), (None, None)]
    assert jobs[2].reason == (
        "attempt 1 continued from step 1, which is not where the last checkpoint of attempt 0 was recorded, so the "
        "time of the lost steps is unknown"
    )
    again = attempt(1, started(50), load(50), resumed(52, after=2), *steps(52, 3))
    result = job(first, again, last=[started(90), load(90), resumed(92, after=2), *steps(92, 1)])
    assert (result.steps_lost, result.lost_ns) == (2 + 3, (19 + 30) * S)


def test_an_attempt_without_steps_does_not_hide_that_the_next_one_went_further_back() -> None:
    """Attempt 1 loads the checkpoint after step 2 and makes no step. Attempt 2 loads an older one."""
    first = attempt(0, started(0), *steps(0, 4), save(20, step_number=2))
    none = attempt(1, started(50), load(50), resumed(52, after=2))
    result = job(first, none, last=[started(90), load(90), resumed(92, after=1), *steps(92, 1)])
    assert (result.steps_lost, result.lost_ns) == (None, None)
    assert result.reason is not None
    assert result.reason.startswith("attempt 2 continued from step 1")


def test_attempts_that_saved_nothing_lose_all_their_steps() -> None:
    """Attempt 0 saves after 2 of 4 steps, attempt 1 continues from there and saves nothing, and attempt 2 likewise."""
    first = attempt(0, started(0), *steps(0, 4), save(20, step_number=2))
    second = attempt(1, started(50), load(50), *steps(52, 3))
    result = job(first, second, last=[started(90), load(90), *steps(92, 1)])
    assert (result.steps_lost, result.lost_ns, result.productive_ns) == (2 + 3, (19 + 30) * S, (20 + 10) * S)
    assert result.restart_ns == (52 - 40 + 92 - 82) * S


def test_without_recorded_checkpoints_the_loss_is_unknown() -> None:
    """Another library may have saved it; steps are numbered from 0 in every attempt."""
    result = job(attempt(0, started(0), *steps(0, 4)), last=[started(50), *steps(51, 2)])
    assert (result.steps_lost, result.lost_ns, result.productive_ns) == (None, None, None)
    assert (result.steps_done, result.steps_ns) == (6, 60 * S)
    assert result.reason == (
        "attempt 1 loaded no recorded checkpoint, so it is unknown whether it continued from the steps of attempt 0"
    )


def test_an_attempt_without_steps_is_startup_or_restart() -> None:
    """10 s of attempt 0, 5 s of nothing, 20 s of attempt 1, 3 s of nothing, 2 s until the first step of attempt 2."""
    dead = attempt(0, started(0), phase(Phase.FORWARD, 9 * S, 10 * S))
    dead_again = attempt(1, started(15), load(20), phase(Phase.FORWARD, 34 * S, 35 * S))
    result = job(dead, dead_again, last=[started(38), *steps(40, 2)])
    assert (result.startup_ns, result.restart_ns, result.checkpoint_stall_ns) == (10 * S, 30 * S, 0)
    assert (result.elapsed_ns, result.productive_ns, result.steps_lost) == (60 * S, 20 * S, 0)


def test_the_last_attempt_loses_nothing() -> None:
    result = job(attempt(0, started(0), *steps(0, 4)), last=[started(50), phase(Phase.FORWARD, 55 * S, 56 * S)])
    assert (result.steps_lost, result.productive_ns, result.restart_ns) == (0, 40 * S, 16 * S)


def test_all_time_before_the_first_step_is_startup() -> None:
    """10 s of startup with a load of 2 s and an evaluation of 3 s, then two steps and 4 s of nothing."""
    rows = [started(0), load(1), phase(Phase.EVALUATION, 5 * S, 8 * S), *steps(10, 2), phase(Phase.GC, 33 * S, 34 * S)]
    result = job(last=rows)
    assert (result.startup_ns, result.checkpoint_stall_ns, result.evaluation_ns) == (10 * S, 0, 0)
    assert (result.productive_ns, result.other_ns) == (20 * S, 4 * S)


def test_a_checkpoint_within_an_evaluation_is_evaluation() -> None:
    rows = [started(0), *steps(0, 3), phase(Phase.EVALUATION, 12 * S, 18 * S, at=1), save(14, step_number=1)]
    result = job(last=rows)
    assert (result.checkpoint_stall_ns, result.evaluation_ns, result.productive_ns) == (0, 6 * S, 24 * S)


def test_an_incomplete_step_does_not_count_but_its_save_is_a_stall() -> None:
    """Killed at 27 s, 7 s into the third step and 2 s into a save."""
    rows = [started(0), *steps(0, 2), step(2, 20 * S, OPEN), replace(save(25), end_ns=OPEN)]
    result = job(last=[*rows, phase(Phase.GC, 26 * S, 27 * S)])
    assert (result.steps_done, result.productive_ns) == (2, 20 * S)
    assert (result.checkpoint_stall_ns, result.other_ns) == (2 * S, 5 * S)


def test_steps_with_dropped_records_count() -> None:
    """Steps 0 to 5; the records of 2, 3 and 4 are missing."""
    kept = [row for row in steps(0, 6) if row.step not in (2, 3, 4)]
    result = job(last=[started(0), *kept])
    assert (result.steps_done, result.productive_ns, result.other_ns) == (6, 60 * S, 0)


def test_overlapping_attempts_have_no_negative_gap() -> None:
    first = attempt(0, started(0), *steps(0, 4), save(20, step_number=2))
    result = job(first, last=[started(35), load(36), *steps(38, 2)])
    assert (result.restart_ns, result.elapsed_ns) == (3 * S, (40 + 23) * S)


def test_without_a_recorded_load_the_start_of_an_attempt_is_unknown() -> None:
    first = attempt(0, started(0), *steps(0, 4), save(20, step_number=2))
    result = job(first, last=[started(50), *steps(51, 2)])
    assert (result.steps_lost, result.lost_ns, result.productive_ns, result.productive_ratio) == (
        None,
        None,
        None,
        None,
    )


def test_an_unfinished_checkpoint_keeps_no_steps() -> None:
    first = attempt(0, started(0), *steps(0, 2), replace(save(20), end_ns=OPEN))
    assert first.kept_steps is None


def test_an_attempt_that_ended_cleanly_loses_nothing() -> None:
    result = job(attempt(0, started(0), *steps(0, 4), ending="clean"), last=[started(50), *steps(51, 2)])
    assert result.steps_lost == 0


def test_steps_that_a_rollback_undid_are_neither_productive_nor_lost() -> None:
    """Saved after 2 of 4 steps. The fourth is bad, loads for 2 s and goes back; two more follow, then a restart."""
    bad = [save(20, step_number=2), load(36), rolled_back(38, to=2, undone=2, last=3)]
    rows = [started(0), *steps(0, 6), *bad]
    result = job(last=rows)
    assert (result.steps_done, result.steps_rolled_back, result.steps_lost, result.steps_kept) == (6, 2, 0, 4)
    assert (result.rolled_back_ns, result.checkpoint_stall_ns, result.productive_ns) == (17 * S, 3 * S, 40 * S)
    continued = [started(70), load(70), resumed(72, after=2), *steps(72, 1)]
    after = job(attempt(0, *rows), last=continued)
    assert (after.steps_rolled_back, after.steps_lost, after.lost_ns) == (2, 2, 20 * S)
    saved = job(attempt(0, *rows, save(59, step_number=5)), last=[started(70), resumed(72, after=4), *steps(72, 1)])
    assert (saved.steps_rolled_back, saved.steps_lost, saved.steps_kept) == (2, 0, 5)


def test_a_second_rollback_undoes_what_stands_after_the_first() -> None:
    """Steps 2 and 3 are undone, then step 4; then step 5 stands, which is step 3 of the training."""
    twice = [rolled_back(38, to=2, undone=2, last=3), rolled_back(48, to=2, undone=1, last=4)]
    result = job(last=[started(0), *steps(0, 6), save(20, step_number=2), *twice])
    assert (result.steps_rolled_back, result.rolled_back_ns, result.steps_kept) == (3, 29 * S, 3)
    assert result.attempts[0].state_steps == 3


def test_a_process_killed_in_the_step_of_its_rollback_has_undone_the_complete_ones() -> None:
    rows = [started(0), *steps(0, 3), save(20, step_number=2), step(3, 30 * S, OPEN)]
    first = attempt(0, *rows, rolled_back(38, to=2, undone=2, last=3))
    assert (first.undone_steps, first.state_steps) == (1, 2)
    result = job(first, last=[started(50), load(50), resumed(52, after=2), *steps(52, 1)])
    assert (result.steps_rolled_back, result.steps_lost, result.rolled_back_ns) == (1, 0, 9 * S)


def test_a_rollback_beyond_the_begin_of_the_attempt_loses_steps_of_the_one_before() -> None:
    """Attempt 1 continues after step 4, and goes back to step 2 because the newer checkpoint is damaged by then."""
    first = attempt(0, started(0), *steps(0, 4), save(20, step_number=2), ending=None)
    again = [started(50), load(50), resumed(52, after=4), *steps(52, 3), rolled_back(70, to=2, undone=4, last=1)]
    result = job(first, last=again)
    assert (result.steps_rolled_back, result.steps_lost, result.lost_ns) == (2, 2, 19 * S)


def test_a_step_that_updated_nothing_is_skipped_unless_it_is_lost() -> None:
    """Steps 1 and 3 of 4 are skipped; two were saved."""
    rows = [replace(row, flags=Flag.SKIPPED) if row.step in (1, 3) else row for row in steps(0, 4)]
    first = attempt(0, started(0), *rows, save(20, step_number=2))
    assert (first.skipped_steps, first.kept_skipped_steps) == (2, 1)
    result = job(first, last=[started(50), load(50), resumed(52, after=2), *steps(52, 1)])
    assert (result.steps_skipped, result.skipped_ns, result.steps_lost, result.lost_ns) == (1, 10 * S, 2, 19 * S)
    assert (result.productive_ns, result.steps_kept) == (20 * S, 2)
    unknown = job(first, last=[started(50), *steps(52, 1)])
    assert (unknown.steps_skipped, unknown.skipped_ns, unknown.steps_kept) == (None, None, None)


def test_a_load_of_a_rollback_does_not_show_where_the_attempt_began() -> None:
    """Attempt 1 does not declare where it continued. Its load belongs to a rollback."""
    first = attempt(0, started(0), *steps(0, 4), save(20, step_number=2))
    back = rolled_back(75, to=1, undone=1, last=1)
    result = job(first, last=[started(50), *steps(52, 3), load(70), back])
    assert result.reason is not None
    assert result.reason.startswith("attempt 1 loaded no recorded checkpoint")


spans = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda drawn: (drawn[0], sum(drawn)))


@st.composite
def attempts(draw: st.DrawFn, begin_s: int) -> list[Row]:
    """An attempt's records: steps one after the other, other phases anywhere."""
    rows = [started(begin_s)]
    borders = sorted(draw(st.lists(st.integers(0, 80), max_size=6, unique=True)))
    for number, (start, end) in enumerate(pairwise(borders)):
        if draw(st.booleans()):
            flags = draw(st.sampled_from([0, 0, Flag.SKIPPED]))
            rows.append(step(number, (begin_s + start) * S, (begin_s + end) * S, flags=flags))
    for start, end in draw(st.lists(spans, max_size=5)):
        of, name = draw(st.sampled_from([(Phase.EVALUATION, "e"), (Phase.CHECKPOINT_STALL, "save"), (Phase.GC, "g")]))
        end_ns = draw(st.sampled_from([(begin_s + end) * S, OPEN]))
        rows.append(replace(phase(of, (begin_s + start) * S, end_ns), name=name))
    rows += [load(begin_s + draw(st.integers(0, 60)))] if draw(st.booleans()) else []
    for to, undone, last in draw(st.lists(st.tuples(*[st.integers(1, 4)] * 3), max_size=2)):
        rows.append(rolled_back(begin_s + 20 * last, to=to, undone=undone, last=last))
    rows += [resumed(begin_s, after=draw(st.integers(1, 8)))] if draw(st.booleans()) else []
    return sorted(rows, key=lambda row: row.start_ns)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=examples(500), deadline=None)
def test_every_instant_of_a_job_is_in_one_part(data: st.DataObject) -> None:
    """Three attempts whose times may overlap, as clocks that are set back make them."""
    begins = [0, data.draw(st.integers(0, 120)), data.draw(st.integers(60, 240))]
    first, second, last = (data.draw(attempts(begin)) for begin in begins)
    earlier = (attempt(0, *first), attempt(1, *second, ending=data.draw(st.sampled_from(["clean", None]))))
    result = goodput(build_timeline(replace(run(replace(rank(0, *last), attempt=2)), earlier=earlier)))
    if result is not None:
        assert_a_partition(result)


def test_without_a_step_there_is_no_goodput() -> None:
    assert goodput(build_timeline(run(rank(0, started(0))))) is None


def test_an_attempt_ends_when_the_next_one_begins_although_its_ranks_still_wait() -> None:
    """A host was cut off during a save at 30 s. Its rank waits until 400 s; the others begin again at 100 s.

    That save has ended for its rank, but not for the job.
    """
    held = replace(phase(Phase.CHECKPOINT_STALL, 30 * S, 400 * S), name="save checkpoint")
    first = attempt(0, *steps(0, 3), held, last_s=400, until_s=100)
    result = job(first, last=[load(100), *steps(105, 2)])
    assert (first.last_ns, first.checkpoint_stall_ns, first.steps_ns) == (100 * S, 70 * S, 30 * S)
    assert (result.elapsed_ns, result.restart_ns, result.checkpoint_stall_ns) == (125 * S, 5 * S, 70 * S)
    assert (result.steps_done, result.steps_lost, result.lost_ns) == (5, 3, 30 * S)


def test_steps_that_an_attempt_made_after_the_next_ones_begin_still_count() -> None:
    first = attempt(0, *steps(0, 3), last_s=400, until_s=25)
    assert (first.last_ns, first.num_steps, first.steps_ns) == (30 * S, 3, 30 * S)
