"""The exception that counts, of those that a rank recorded at its end, and the sentences about it."""

from dataclasses import replace
from typing import Any

import pytest

from tests.analysis.faults.test_faults import DP, MS, S, event, faults, note, noted
from tests.timeline.build import Row, collective, phase, rank, step, timeline
from traincope.analysis import Fault, FaultKind, Finding, FindingKind, analyze
from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.faults.exceptions import chain_of
from traincope.events import LEFT, OPEN, SIGNAL_HANDLED, Flag, Phase
from traincope.store import LauncherNote, RankRecords

TIME_OUT = "[/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 60000ms for recv operation to complete"
DIED_NS = 60 * S


def raised(kind: str, at: str, message: str = "", **more: Any) -> dict[str, Any]:
    """Details of an exception at a line of the training."""
    return {"type": kind, "at": at, "message": message, "traceback": [f"/home/me/{at} in main"], **more}


WRONG_WIDTH = raised("ValueError", "train.py:17", "width 127")
FAILED = raised("RuntimeError", "train.py:36", TIME_OUT, communication=True)


def dead(
    number: int, details: dict[str, Any], *, waited_since_ns: int = 110 * MS, died_ns: int = DIED_NS
) -> RankRecords:
    """A rank that made a step, waited in a collective, and died of its failure a minute later."""
    call = collective(waited_since_ns, died_ns, name="all_reduce", at=1, flags=Flag.RAISED)
    rows = [step(0, 0, 100 * MS), step(1, 100 * MS, OPEN), phase(Phase.BACKWARD, 101 * MS, died_ns, at=1), call]
    rows.append(event("exception", died_ns, details=1, at=1))
    return replace(rank(number, *rows, groups=[DP], ending=str(details["type"])), details={1: details})


def first(*ranks: RankRecords, notes: tuple[LauncherNote, ...] = ()) -> Finding:
    return analyze(noted(*ranks, notes=notes)).verdict[0]


def only(found: list[Fault], number: int) -> Fault:
    return next(fault for fault in found if fault.ranks == (number,))


@pytest.mark.parametrize("notes", [(), (note(0, 1, first=True), note(1, -15))])
def test_the_exception_that_a_collective_in_a_finally_hid_is_the_first(notes: tuple[LauncherNote, ...]) -> None:
    """Both die of time-outs, rank 0 before rank 1. Rank 1 waited in its `finally` since its ValueError."""
    chain = [{**WRONG_WIDTH, "link": "context"}]
    ranks = dead(0, FAILED), dead(1, {**FAILED, "chain": chain}, waited_since_ns=105 * MS)
    finding = first(*ranks, notes=notes)
    assert (finding.kind, finding.ranks) == (FindingKind.FAILED_RANK, (1,))
    assert finding.confidence == (HIGH if notes else MEDIUM)
    assert finding.evidence.startswith("rank 1 failed first: it raised ValueError: width 127 at train.py:17; while it ")
    assert "Timed out waiting 60000ms for recv operation to complete at train.py:36" in finding.evidence
    assert finding.advice.startswith(
        "Mend the ValueError at train.py:17. Call no collective in `except` or `finally` (train.py:36)"
    )
    found = faults(noted(*ranks, notes=notes))
    assert (only(found, 1).at_ns, only(found, 1).follows) == (105 * MS, False)
    assert (only(found, 0).at_ns, only(found, 0).follows) == (DIED_NS, True)


def test_what_several_ranks_handle_when_another_fails_is_their_programs_path() -> None:
    """Ranks 0 and 1 call a collective in the handler of a KeyError, as always. Rank 2 does not join it: it failed."""
    handled = {**FAILED, "chain": [{**raised("KeyError", "train.py:20"), "link": "context"}]}
    failed = dead(2, raised("ValueError", "data.py:3", "bad sample"))
    finding = first(dead(0, handled), dead(1, handled), failed)
    assert (finding.kind, finding.ranks) == (FindingKind.FAILED_RANK, (2,))
    assert "ValueError: bad sample at data.py:3" in finding.evidence


@pytest.mark.parametrize("link", ["cause", "context"])
def test_an_exception_after_a_failure_of_the_communication_accuses_no_rank(link: str) -> None:
    summary = raised("KeyError", "train.py:50", "'summary'", chain=[{**FAILED, "link": link}])
    found = faults(timeline(dead(0, summary), dead(1, FAILED)))
    assert [fault.of_communication for fault in found if fault.kind == FaultKind.EXCEPTION] == [True, True]
    assert "Timed out" in only(found, 0).what


def test_failures_of_the_communication_are_ordered_by_their_instants() -> None:
    """The launcher noticed rank 1 first, whose time-out was longer."""
    ranks = dead(0, FAILED), dead(1, FAILED, died_ns=90 * S)
    found = faults(noted(*ranks, notes=(note(1, 1, first=True), note(0, -15))))
    ends = [fault for fault in found if fault.kind == FaultKind.EXCEPTION]
    assert [(end.ranks, end.follows) for end in ends] == [((0,), False), ((1,), True)]


def test_exceptions_behind_the_one_that_counts_are_named() -> None:
    behind = [{**raised("KeyError", "data.py:10", "'label'"), "link": "cause"}]
    chain = chain_of({**raised("ValueError", "data.py:12", "bad record"), "chain": behind})
    assert f"{chain.counted}{chain.behind}" == (
        "ValueError: bad record at data.py:12, caused by KeyError: 'label' at data.py:10"
    )
    assert chain.hidden_by is None


def test_the_first_exception_of_a_group_counts() -> None:
    group = raised("ExceptionGroup", "taskgroups.py:145", "unhandled errors in a TaskGroup")
    member = {**raised("JSONDecodeError", "judge.py:23", "Expecting value"), "link": "member"}
    chain = chain_of({**group, "chain": [member, {**WRONG_WIDTH, "link": "context"}]})
    assert f"{chain.counted}{chain.behind}" == (
        "JSONDecodeError: Expecting value at judge.py:23, in ExceptionGroup, while handling "
        "ValueError: width 127 at train.py:17"
    )
    outer = chain_of({**group, "chain": [{**group, "link": "member"}, {**FAILED, "link": "member"}]})
    assert (outer.counted.of_communication, outer.hidden_by) == (True, None)


def test_the_trainings_own_line_comes_first() -> None:
    frames = [
        "/home/me/train.py:31 in main",
        "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:1751 in _wrapped_call_impl",
        "/home/me/model.py:7 in forward",
        "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py:125 in forward",
    ]
    error = chain_of({"type": "RuntimeError", "at": "linear.py:125", "traceback": frames}).counted
    assert str(error) == "RuntimeError at model.py:7 (raised at linear.py:125)"
    assert error.callers == "called from train.py:31 in main"


def left(
    call: str, code: int, *, number: int = 1, handler: str = "", ending: str | None = "clean", later: bool = False
) -> RankRecords:
    """Rank 1, or `number`, which called for its end in step 1; `later`: and made another step."""
    rows: list[Row] = [step(0, 0, 100 * MS), step(1, 100 * MS, 150 * MS if ending else OPEN)]
    rows.append(event(LEFT, 140 * MS, details=1, at=1))
    rows += [step(2, 150 * MS, 250 * MS)] if later else []
    details = raised(
        "SystemExit", "train.py:9", call=call, code=code, **({"signal_handler": handler} if handler else {})
    )
    return replace(rank(number, *rows, groups=[DP], ending=ending), details={1: details})


def waiting() -> RankRecords:
    """Rank 0, which died of the end of rank 1."""
    return dead(0, {**FAILED, "message": "Connection closed by peer [127.0.0.1]:46273"})


def test_an_exit_with_code_0_in_the_handler_of_a_signal_is_named_with_its_line() -> None:
    finding = first(waiting(), left("sys.exit", 0, handler="SIGTERM"), notes=(note(0, 1, first=True),))
    assert finding.ranks == (1,)
    assert "rank 1 left by sys.exit(0) at train.py:9 in its handler of SIGTERM" in finding.evidence
    assert "nonzero code" in finding.advice


def test_a_rank_that_handled_sigterm_before_its_launcher_answered_is_the_first() -> None:
    """Each rank exits in its handler. The launcher sends SIGTERM to the others when it notices the end of rank 1."""

    def handled(number: int, at_ns: int) -> RankRecords:
        rows = [step(0, 0, 100 * MS), step(1, 100 * MS, at_ns + 9 * MS), event(LEFT, at_ns, details=1, at=1)]
        details = raised("SystemExit", "train.py:9", call="sys.exit", code=1, signal_handler="SIGTERM")
        return replace(rank(number, *rows, groups=[DP], ending="clean"), details={1: details})

    noticed = replace(note(1, 1, first=True), at_wall_ns=240 * MS + 1)
    notes = (noticed, note(0, 1), note(2, 1))
    one_by_one = first(handled(0, 260 * MS), handled(1, 140 * MS), handled(2, 270 * MS), notes=notes)
    assert (one_by_one.ranks, "its handler of SIGTERM" in one_by_one.evidence) == ((1,), True)
    at_once = first(handled(0, 141 * MS), handled(1, 140 * MS), handled(2, 142 * MS), notes=notes)
    assert (at_once.kind, at_once.ranks) == (FindingKind.STOPPED_JOB, ())
    assert "every rank got SIGTERM" in at_once.evidence


def test_an_exit_that_the_training_caught_is_not_its_end() -> None:
    finding = first(waiting(), left("sys.exit", 0, later=True))
    assert "sys.exit(0) at" not in finding.evidence


def test_an_end_by_os_exit_has_its_line_although_it_writes_nothing_else() -> None:
    finding = first(waiting(), left("os._exit", 0, ending=None), notes=(note(0, 1, first=True),))
    assert (finding.kind, finding.ranks) == (FindingKind.FAILED_RANK, (1,))
    assert "it left by os._exit(0) at train.py:9" in finding.evidence
    assert finding.advice.startswith("Look at train.py:9, where rank 1 leaves")


def test_ranks_that_all_leave_with_code_0_end_as_planned() -> None:
    """An agreed early stop, in a program that ends its processes by `os._exit`, may be in two neighbouring steps."""
    both = [left("os._exit", 0, number=number, ending=None) for number in (0, 1)]
    assert faults(noted(*both, notes=(note(None, 0),))) == []
    assert (
        faults(noted(left("os._exit", 0, ending=None), rank(0, step(0, 0, 100 * MS), ending="clean"), notes=())) == []
    )
    for other in (left("os._exit", 3, number=0, ending=None), left("os._exit", 0, number=0, handler="SIGTERM")):
        assert FaultKind.EXIT in {end.kind for end in faults(noted(both[1], other, notes=()))}
    many = [step(number, number * 100 * MS, (number + 1) * 100 * MS) for number in range(9)]
    assert [end.ranks for end in faults(noted(both[1], rank(0, *many, ending="clean"), notes=()))] == [(1,)]


def asked(number: int, *, at_ms: int | None, steps: int = 5) -> RankRecords:
    """A rank that ended cleanly. Its handler took SIGTERM at that time, if any."""
    rows = [step(each, each * 100 * MS, (each + 1) * 100 * MS) for each in range(steps)]
    rows += [] if at_ms is None else [event(SIGNAL_HANDLED, at_ms * MS, details=1)]
    return replace(rank(number, *rows, ending="clean"), details={1: {"signal": "SIGTERM"}})


@pytest.mark.parametrize(("others_at", "who"), [(None, "rank 1"), (421, "every rank")])
def test_ranks_that_end_soon_after_a_signal_that_they_handle_end_as_asked(others_at: int | None, who: str) -> None:
    """One rank's flag may be reduced, so that all end in its step or the next."""
    finding = first(asked(0, at_ms=others_at), asked(1, at_ms=420), notes=())
    assert (finding.kind, finding.ranks, finding.confidence) == (FindingKind.STOPPED_JOB, (), HIGH)
    assert finding.evidence == (
        f"{who} got SIGTERM in step 4: a handler of the training took it, and all ranks ended by themselves after "
        "step 4, as asked"
    )


def test_a_signal_long_before_the_end_or_before_a_failure_is_no_stop() -> None:
    assert all(fault.is_mark for fault in faults(noted(asked(0, at_ms=None), asked(1, at_ms=120), notes=())))
    failed = asked(0, at_ms=None), asked(1, at_ms=420)
    assert first(*failed, notes=(note(0, 3, first=True),)).kind is FindingKind.FAILED_RANK


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("Killed", "Read the kernel's log"),
        ("Bus error", "Give the container more shared memory"),
        ("Segmentation fault", "Run the Dataset's code alone"),
        ("Terminated", "Find who ended the DataLoader's worker"),
    ],
)
def test_the_signal_of_a_data_loaders_worker_decides_the_advice(words: str, advice: str) -> None:
    """torch raises a second exception from that of its own handler of SIGCHLD."""
    killed = raised(
        "RuntimeError", "signal_handling.py:73", f"DataLoader worker (pid 7) is killed by signal: {words}. "
    )
    gone = "DataLoader worker (pid(s) 7) exited unexpectedly"
    error = raised("RuntimeError", "train.py:31", gone, chain=[{**killed, "link": "cause"}])
    finding = first(waiting(), dead(1, error))
    assert (finding.ranks, words in finding.evidence) == ((1,), True)
    assert finding.advice.startswith(advice)
