"""A rank that goes on with work of its own until the others' time-out: runs made by hand."""

from dataclasses import replace

import pytest

from tests.analysis.faults.hangs.test_stops import FAULTY, looked
from tests.analysis.faults.test_faults import event
from tests.timeline.build import Row, collective, group, phase, rank, stall, step, timeline
from traincope.analysis import HangKind, analyze
from traincope.analysis.confidence import MEDIUM
from traincope.events import NO_STEP, OPEN, Flag, Phase
from traincope.store import Look, RankRecords

MS = 1_000_000
STEP_NS = 100 * MS
WAIT_NS, TIMEOUT_NS = 3 * STEP_NS + 10 * MS, 15_000 * MS
DP = group("dp", 0, 1, 2)
TIMED_OUT = "Timed out waiting 15000ms for recv operation to complete"
CLOSED = "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:27535"


def complete_steps() -> list[Row]:
    return [step(at, at * STEP_NS, (at + 1) * STEP_NS) for at in range(3)]


def waiting(number: int, *, message: str = TIMED_OUT) -> RankRecords:
    """A rank whose backward waited until its communication failed."""
    end_ns = WAIT_NS + TIMEOUT_NS + number * MS
    rows = [*complete_steps(), step(3, 3 * STEP_NS, OPEN), phase(Phase.BACKWARD, WAIT_NS, end_ns, at=3)]
    rows.append(event("exception", end_ns, details=1, at=3))
    detail = {"type": "RuntimeError", "at": "train.py:45", "message": message, "communication": True}
    return replace(rank(number, *rows, groups=[DP], ending="RuntimeError"), details={1: detail})


def working(number: int, *, until_ns: int, of: tuple[Phase, ...] = (Phase.FORWARD,)) -> RankRecords:
    """A rank that goes through these phases again and again, and is then ended by a signal."""
    rows = [*complete_steps(), step(3, 3 * STEP_NS, OPEN)]
    begins = range(3 * STEP_NS, until_ns, STEP_NS)
    rows += [phase(each, at + MS * n, at + MS * n + MS // 2, at=3) for at in begins for n, each in enumerate(of)]
    made = rank(number, *rows, groups=[DP], ending=None)
    return replace(made, info=replace(made.info, signals={"SIGTERM": "No stack.\n"}))


def hangs_of(*ranks: RankRecords) -> list[tuple[HangKind, tuple[int, ...], str]]:
    return [(hang.kind, hang.culprits, hang.confidence) for hang in analyze(timeline(*ranks)).hangs]


def test_the_rank_that_evaluated_until_the_time_out_is_named() -> None:
    result = analyze(timeline(working(0, until_ns=20_000 * MS), waiting(1), waiting(2)))
    (hang,) = result.hangs
    assert (hang.kind, hang.culprits, hang.victims, hang.confidence) == (HangKind.BUSY, (0,), (1, 2), MEDIUM)
    assert hang.evidence == (
        "rank 0 was at work for 15.0 s, in forward 150 times without a backward, as in an evaluation; "
        "ranks 1, 2 waited for it at train.py:45 until their time-out"
    )
    assert result.verdict[0].ranks == (0,)
    assert "init_process_group(timeout=...)" in result.verdict[0].advice


def test_with_backwards_it_is_no_evaluation() -> None:
    busy = working(0, until_ns=20_000 * MS, of=(Phase.FORWARD, Phase.BACKWARD))
    (hang,) = analyze(timeline(busy, waiting(1), waiting(2))).hangs
    assert hang.doing == "in forward 150 times"


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param((working(0, until_ns=6_000 * MS), waiting(1), waiting(2)), id="it stopped before"),
        pytest.param((working(0, until_ns=WAIT_NS), waiting(1), waiting(2)), id="it did nothing more"),
        pytest.param((*(working(at, until_ns=20_000 * MS) for at in (0, 1)), waiting(2)), id="two are at work"),
        pytest.param(
            (working(0, until_ns=20_000 * MS), *(waiting(at, message=CLOSED) for at in (1, 2))), id="no time-out"
        ),
        pytest.param((waiting(0), waiting(1), waiting(2)), id="all waited"),
    ],
)
def test_otherwise_no_rank_is_named(ranks: tuple[RankRecords, ...]) -> None:
    assert all(not culprits for _, culprits, _ in hangs_of(*ranks))


def at_a_barrier(number: int, *, message: str) -> RankRecords:
    """A rank that waited in a barrier before its first step until its communication failed."""
    barrier = collective(10 * MS, TIMEOUT_NS, name="barrier", at=NO_STEP, flags=Flag.RAISED)
    rows = [barrier, stall(barrier, 10 * MS, TIMEOUT_NS), event("exception", TIMEOUT_NS + MS, details=1)]
    detail = {"type": "RuntimeError", "at": "train.py:15", "message": message, "communication": True}
    return replace(rank(number, *rows, groups=[DP], ending="RuntimeError"), details={1: detail})


@pytest.mark.parametrize(("message", "culprits"), [(TIMED_OUT, [(0,)]), (CLOSED, [])])
def test_a_rank_that_did_not_join_before_the_first_step_is_named_if_a_time_out_shows_it(
    message: str, culprits: list[tuple[int, ...]]
) -> None:
    """It had 10 minutes. A connection that closes shows only that something ended it."""
    preparing = looked(rank(0, phase(Phase.GC, MS, 2 * MS), groups=[DP], ending=None), FAULTY)
    others = [at_a_barrier(at, message=message) for at in (1, 2)]
    found = [hang for hang in analyze(timeline(preparing, *others)).hangs if hang.culprits]
    assert [hang.culprits for hang in found] == culprits
    for hang in found:
        assert (hang.kind, hang.victims, hang.collective) == (HangKind.STUCK, (1, 2), "barrier")


@pytest.mark.parametrize(("seen_ns", "site"), [(STEP_NS, None), (TIMEOUT_NS, "train.py:9")])
def test_a_stack_of_an_earlier_stop_is_not_where_it_worked(seen_ns: int, site: str | None) -> None:
    busy = replace(working(0, until_ns=20_000 * MS), looks=(Look(at_ns=seen_ns, stack=FAULTY),))
    (hang,) = analyze(timeline(busy, waiting(1), waiting(2))).hangs
    assert hang.call_site == site
