"""Stops with what their ranks recorded themselves: errors of threads, ranks that a barrier missed."""

from dataclasses import replace

from tests.analysis.faults.hangs.test_stops import LAST_NS, MS, NUM_STEPS, STOP_NS, only, steps, stuck, victim
from tests.analysis.faults.test_faults import event
from tests.timeline.build import collective, group, rank, timeline
from traincope.analysis import analyze
from traincope.analysis.confidence import MEDIUM
from traincope.analysis.faults.hangs.testimony import missed_ranks
from traincope.events import THREAD_ENDED, Flag
from traincope.store import RankRecords

PASSED = "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."


def test_the_error_of_a_thread_of_the_culprit_is_part_of_the_evidence() -> None:
    """The training waits for a queue that the thread no longer fills."""
    rows = [*steps(), event(THREAD_ENDED, STOP_NS + 5 * MS, details=1, at=NUM_STEPS)]
    details = {"type": "OSError", "at": "data.py:9", "message": "[Errno 5] Input/output error", "thread": "prefetch"}
    culprit = stuck(1)
    made = rank(1, *rows, groups=[group("dp", 0, 1)], ending=None)
    hang = only(victim(0), replace(culprit, segments=made.segments, names=made.names, details={1: details}))
    assert hang.culprits == (1,)
    assert hang.evidence.endswith(
        "its thread prefetch ended by OSError: [Errno 5] Input/output error at data.py:9, 34.0 s before"
    )


def missed(number: int, message: str, *, members: tuple[int, ...]) -> RankRecords:
    """A rank whose monitored barrier failed after a second."""
    died_ns = LAST_NS + 1_000 * MS
    call = collective(LAST_NS, died_ns, name="monitored_barrier", at=NUM_STEPS, flags=Flag.RAISED)
    rows = [*steps(), call, event("exception", died_ns, details=1, at=NUM_STEPS)]
    details = {"type": "RuntimeError", "at": "train.py:22", "message": message, "communication": True}
    records = rank(number, *rows, groups=[group("join", *members)], ending="RuntimeError")
    return replace(records, details={1: details})


def test_the_ranks_that_a_monitored_barrier_missed_are_those_of_its_group() -> None:
    one = timeline(missed(4, "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 25000 ms", members=(4, 6, 8)))
    assert list(missed_ranks(one)) == [(4, (8,))]
    two = timeline(missed(4, "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 25000 ms", members=(4, 6, 8)))
    assert list(missed_ranks(two)) == [(4, (6, 8))]
    damaged = timeline(missed(4, "[Rank 0]: Rank 9 failed to pass monitoredBarrier in 25000 ms", members=(4, 6, 8)))
    assert list(missed_ranks(damaged)) == []


def test_the_rank_that_a_monitored_barrier_missed_is_named_if_nothing_else_shows_it() -> None:
    """A second is too short for a stop."""
    members = (0, 1, 2)
    named = missed(0, "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 1000 ms", members=members)
    late = missed(2, "Connection closed by peer [127.0.0.1]:41354", members=members)
    finding = analyze(timeline(named, missed(1, PASSED, members=members), late)).verdict[0]
    assert (finding.ranks, finding.confidence) == ((2,), MEDIUM)
    assert finding.evidence.startswith("rank 2 did not reach the monitored_barrier of the others")
