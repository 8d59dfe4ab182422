"""Events of GPUs become faults; what a healthy GPU does under load becomes a mark."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.timeline.build import Row, rank, step, timeline
from traincope.analysis.faults import Fault, FaultKind
from traincope.analysis.hardware import hardware_faults
from traincope.analysis.marks import marks
from traincope.events import Kind
from traincope.store import RankRecords
from traincope.timeline import Timeline

S = 1_000_000_000
HOT = "hardware thermal slowdown"
CAP = "software power cap"
FAULTY = "told by NVML of GPU-1"


def watched(number: int, *events: tuple[int, str, Mapping[str, Any]], until: int = 100) -> RankRecords:
    """A rank of one step whose thread beside the training's wrote these events; times in seconds."""
    rows = [
        Row(kind=Kind.EVENT, start_ns=at * S, end_ns=at * S, name=name, step=0, group=told, thread="thread-1")
        for told, (at, name, _) in enumerate(events, start=1)
    ]
    details = {told: {**values, "gpu": "GPU-1"} for told, (_, _, values) in enumerate(events, start=1)}
    return replace(rank(number, step(0, 0, until * S), *rows), details=details)


def found(*ranks: RankRecords) -> list[Fault]:
    return sorted(hardware_faults(timeline(*ranks)), key=lambda fault: (fault.at_ns, fault.ranks))


def test_a_throttled_gpu_is_slow_from_the_begin_to_the_end_of_its_last_reason() -> None:
    both = {"reasons": [HOT, "hardware slowdown"], "seen_within_seconds": 2.0}
    (fault,) = found(
        watched(
            3,
            (10, "gpu throttled", both),
            (14, "gpu not throttled", {"reasons": ["hardware slowdown"]}),
            (30, "gpu not throttled", {"reasons": [HOT]}),
        )
    )
    assert fault == Fault(
        kind=FaultKind.THROTTLED,
        at_ns=10 * S,
        ranks=(3,),
        step=0,
        what="the GPU is slowed down: hardware thermal slowdown, hardware slowdown",
        evidence=f"for 20.0 s; {FAULTY}; it began up to 2.0 s earlier",
        confidence="high",
        lasted_ns=20 * S,
    )
    assert fault.is_fault


def test_a_gpu_that_is_throttled_again_is_told_again_and_one_without_end_until_its_records_end() -> None:
    hot = {"reasons": [HOT]}
    first, second = found(
        watched(0, (10, "gpu throttled", hot), (12, "gpu not throttled", hot), (90, "gpu throttled", hot))
    )
    assert (first.lasted_ns, second.lasted_ns) == (2 * S, 10 * S)
    assert second.evidence == f"for 10.0 s, until its records end; {FAULTY}"


def test_the_power_limit_alone_is_a_mark_and_told_once_a_rank() -> None:
    capped = {"reasons": [CAP]}
    begins = [(at, "gpu throttled", capped) for at in (10, 20, 30)]
    ends = [(at, "gpu not throttled", capped) for at in (14, 21)]
    first, second = found(watched(0, *begins, *ends), watched(1, begins[0], ends[0]))
    assert (first.what, first.lasted_ns) == ("the GPU is held at its power limit, 3 times", (4 + 1 + 70) * S)
    assert (second.what, second.lasted_ns) == ("the GPU is held at its power limit, once", 4 * S)
    assert first.is_mark
    assert not first.is_fault


@pytest.mark.parametrize(
    ("name", "details", "kind", "what"),
    [
        ("gpu xid", {"xid": 79, "meaning": "it fell"}, FaultKind.XID, "XID 79: it fell"),
        ("gpu lost", {"why": "GPU is lost"}, FaultKind.GPU_LOST, "the GPU is lost: GPU is lost"),
        (
            "gpu ecc error",
            {"corrected": 3, "uncorrected": 1},
            FaultKind.ECC_ERROR,
            "uncorrectable ECC errors: 1",
        ),
        ("gpu ecc error", {"corrected": 3, "uncorrected": 0}, FaultKind.ECC_CORRECTED, "corrected ECC errors: 3"),
        (
            "gpu rows remapped",
            {"uncorrected": 1, "pending": True, "failure": False},
            FaultKind.ROWS_REMAPPED,
            "GPU memory rows replaced: 1 for uncorrectable errors; the GPU must be reset before it takes effect",
        ),
        (
            "gpu rows remapped",
            {"uncorrected": 8, "pending": True, "failure": True},
            FaultKind.ROWS_REMAPPED,
            "GPU memory rows replaced: 8 for uncorrectable errors; one could not be replaced, so the GPU should be",
        ),
    ],
)
def test_what_happened_at_one_instant_says_what_it_was(
    name: str, details: Mapping[str, Any], kind: FaultKind, what: str
) -> None:
    (fault,) = found(watched(0, (10, name, details)))
    assert (fault.kind, fault.what, fault.at_ns, fault.evidence) == (kind, what, 10 * S, FAULTY)


@pytest.mark.parametrize("name", ["gpu xid", "gpu throttled", "gpu ecc error", "gpu rows remapped", "gpu lost"])
def test_an_event_whose_details_found_no_room_is_still_told(name: str) -> None:
    bare = replace(watched(0, (10, name, {})), details={})
    (fault,) = found(bare)
    assert fault.is_fault
    assert fault.evidence.endswith("told by NVML")


def test_two_ranks_have_two_gpus() -> None:
    xid = (10, "gpu xid", {"xid": 31, "meaning": "page fault"})
    assert [fault.ranks for fault in found(watched(0, xid), watched(1, xid))] == [(0,), (1,)]


def test_they_are_not_told_a_second_time_as_events_of_the_training() -> None:
    run: Timeline = timeline(watched(0, (10, "gpu xid", {"xid": 31}), (11, "my own", {"xid": 31})))
    assert [mark.what for mark in marks(run)] == ['my own {"gpu": "GPU-1", "xid": 31}']
