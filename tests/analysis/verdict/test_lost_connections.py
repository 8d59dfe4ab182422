"""Errors of the communication itself accuse no rank; a rank that ended in the middle of a step is named instead."""

from dataclasses import replace

import pytest

from tests.analysis.faults.test_faults import event, note, noted
from tests.timeline.build import Row, group, phase, rank, step
from traincope.analysis import FindingKind, analyze
from traincope.analysis.confidence import MEDIUM, UNKNOWN
from traincope.events import OPEN, Phase
from traincope.store import LauncherNote, RankRecords

MS = 1_000_000
STEP_NS = 100 * MS
DP = group("dp", 0, 1, 2)
CLOSED = "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:27535"
ABORT_IN_COMMUNICATION = """Fatal Python error: Aborted

Thread 0x00007f2 (most recent call first):
  <no Python frame>

Thread 0x00007f1 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4394 in all_gather_single
  File "/home/me/train.py", line 9 in main
"""
ABORT_ELSEWHERE = ABORT_IN_COMMUNICATION.replace("torch/distributed/distributed_c10d.py", "sklearn/tree.py")


def failing(number: int, *, last_ns: int, steps: int = 2, kind: str = "communication") -> RankRecords:
    """A rank that made some steps and raised an error in the next one."""
    rows = [step(at, at * STEP_NS, (at + 1) * STEP_NS) for at in range(steps)]
    rows += [step(steps, steps * STEP_NS, OPEN), phase(Phase.BACKWARD, steps * STEP_NS + MS, last_ns, at=steps)]
    rows.append(event("exception", last_ns, details=1, at=steps))
    details = {1: {"type": "RuntimeError", "at": "graph.py:979", "message": CLOSED, kind: True}}
    return replace(rank(number, *rows, groups=[DP], ending="RuntimeError"), details=details)


def ended(number: int, *, steps: int, open_step: bool = False) -> RankRecords:
    """A rank that ended cleanly after some steps, perhaps in the next one."""
    rows = [step(at, at * STEP_NS, (at + 1) * STEP_NS) for at in range(steps)]
    rows += [phase(Phase.FORWARD, steps * STEP_NS, steps * STEP_NS + MS, at=steps)] if open_step else []
    return rank(number, *rows, groups=[DP])


def first(*ranks: RankRecords, notes: tuple[LauncherNote, ...] = ()) -> tuple[FindingKind, tuple[int, ...], str, str]:
    finding = analyze(noted(*ranks, notes=notes)).verdict[0]
    return finding.kind, finding.ranks, finding.confidence, finding.evidence


def open_rows(last_ns: int) -> list[Row]:
    rows = [step(at, at * STEP_NS, (at + 1) * STEP_NS) for at in range(2)]
    return [*rows, step(2, 2 * STEP_NS, OPEN), phase(Phase.BACKWARD, 2 * STEP_NS + MS, last_ns, at=2)]


def test_the_only_rank_without_an_end_is_the_cause() -> None:
    """Rank 1 was killed on another host: no process of it can be asked, and no launcher left a note."""
    others = [failing(number, last_ns=250 * MS + number * MS) for number in (0, 2)]
    killed = rank(1, *open_rows(230 * MS), groups=[DP], ending=None, boot_id="another host")
    kind, ranks, confidence, evidence = first(others[0], killed, others[1])
    assert (kind, ranks, confidence) == (FindingKind.NO_END_RECORDED, (1,), MEDIUM)
    assert evidence.startswith(
        "rank 1 recorded no end and nothing later than 0.230 s after the run's first record; then communication of"
    )


def test_of_two_ranks_without_an_end_none_is_accused() -> None:
    killed = [rank(at, *open_rows(230 * MS), groups=[DP], ending=None, boot_id="another") for at in (1, 2)]
    kind, ranks, confidence, _ = first(failing(0, last_ns=250 * MS), *killed)
    assert (kind, ranks, confidence) == (FindingKind.FAILED_RANK, (0,), UNKNOWN)


def test_a_rank_that_ended_in_the_step_of_the_others_is_the_cause() -> None:
    """Ranks 0 and 2 lose their connection to rank 1, which left the script in their step."""
    others = [failing(number, last_ns=250 * MS + number * MS) for number in (0, 2)]
    kind, ranks, confidence, evidence = first(others[0], ended(1, steps=2, open_step=True), others[1])
    assert (kind, ranks, confidence) == (FindingKind.FAILED_RANK, (1,), MEDIUM)
    assert evidence.startswith(
        "rank 1 ended cleanly after 2 steps, before the others; then communication of ranks 0, 2 "
    )
    assert "Connection closed by peer" in evidence


def test_a_rank_that_ended_after_more_steps_than_the_others_is_only_a_suspect() -> None:
    """One of them issued a collective too many or too few: the records do not show which."""
    _, ranks, confidence, evidence = first(failing(0, last_ns=350 * MS), ended(1, steps=3))
    assert (ranks, confidence) == ((0, 1), UNKNOWN)
    assert evidence.endswith("rank 1 had ended cleanly before; the rank or the link that caused it is unknown")


def test_errors_of_the_communication_alone_name_no_rank() -> None:
    others = [failing(number, last_ns=250 * MS + number * 20 * MS) for number in range(3)]
    assert first(*others)[1:3] == ((0, 1, 2), UNKNOWN)


def test_another_error_is_the_first_even_if_the_lost_connection_was_recorded_earlier() -> None:
    kind, ranks, _, _ = first(failing(0, last_ns=250 * MS), failing(1, last_ns=260 * MS, kind="other"))
    assert (kind, ranks) == (FindingKind.FAILED_RANK, (1,))


@pytest.mark.parametrize(("stacks", "known"), [(ABORT_IN_COMMUNICATION, False), (ABORT_ELSEWHERE, True)])
def test_an_abort_inside_communication_is_not_its_ranks_fault(stacks: str, known: bool) -> None:
    """gloo aborts the process where the sizes of a collective differ: the victim as well as the culprit."""
    rows = [step(0, 0, STEP_NS), step(1, STEP_NS, OPEN)]
    aborted = rank(0, *rows, groups=[DP], ending=None)
    aborted = replace(aborted, info=replace(aborted.info, signals={"fatal": stacks}))
    _, ranks, confidence, _ = first(aborted, failing(1, last_ns=250 * MS), notes=(note(0, -6, first=True),))
    assert (confidence != UNKNOWN) is known
    assert (ranks == (0,)) is known


def test_an_error_before_the_stop_of_the_launcher_is_not_overlooked() -> None:
    """The launcher got SIGTERM a second after rank 1 had failed, before any signal reached that rank."""
    waiting = replace(failing(0, last_ns=260 * MS), info=rank(0, ending=None).info)
    failed = failing(1, last_ns=250 * MS, kind="other")
    assert first(waiting, failed, notes=(note(None, -15),))[:2] == (FindingKind.FAILED_RANK, (1,))


@pytest.mark.parametrize("how", ["is killed by signal: Terminated. ", "exited unexpectedly"])
def test_an_error_because_the_stop_reached_a_data_worker_first_is_no_failure(how: str) -> None:
    """A scheduler signals all processes of a job, workers too."""
    waiting = replace(failing(0, last_ns=260 * MS), info=rank(0, ending=None).info)
    failed = failing(1, last_ns=250 * MS, kind="other")
    message = {**failed.details[1], "message": f"DataLoader worker (pid 7) {how}"}
    failed = replace(failed, details={1: message})
    assert first(waiting, failed, notes=(note(None, -15),))[0] == FindingKind.STOPPED_JOB


def test_a_clean_rank_that_a_stopped_launcher_ended_is_no_fault() -> None:
    """Its process was still there when the launcher ended all ranks, and noted it first."""
    ranks = [ended(0, steps=2), rank(1, step(0, 0, STEP_NS), step(1, STEP_NS, OPEN), groups=[DP], ending=None)]
    notes = (note(0, -15, first=True), note(1, -15), note(None, -15))
    assert first(*ranks, notes=notes)[0] == FindingKind.STOPPED_JOB
