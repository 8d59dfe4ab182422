"""Events of GPUs that become faults, and normal behaviour under load that becomes a mark."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.timeline.build import Row, rank, step, timeline
from traincope.analysis.faults.anomalies.hardware import hardware_faults
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.marks import marks
from traincope.events import Kind
from traincope.store import RankRecords
from traincope.timeline import Timeline

S = 1_000_000_000
HOT = "hardware thermal slowdown"
CAP = "software power cap"
FAULTY = "reported by NVML of GPU-1"


def watched(number: int, *events: tuple[int, str, Mapping[str, Any]], until: int = 100) -> RankRecords:
    """A rank of one step. A second thread wrote these events; times in seconds."""
    rows = [
        Row(kind=Kind.EVENT, start_ns=at * S, end_ns=at * S, name=name, step=0, group=group, thread="thread-1")
        for group, (at, name, _) in enumerate(events, start=1)
    ]
    details = {group: {**values, "gpu": "GPU-1"} for group, (_, _, values) in enumerate(events, start=1)}
    return replace(rank(number, step(0, 0, until * S), *rows), details=details)


def faults_of(*ranks: RankRecords) -> list[Fault]:
    return sorted(hardware_faults(timeline(*ranks)), key=lambda fault: (fault.at_ns, fault.ranks))


def test_throttling_lasts_until_the_end_of_its_last_reason() -> None:
    both = {"reasons": [HOT, "hardware slowdown"], "seen_within_seconds": 2.0}
    (fault,) = faults_of(
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


def test_throttling_without_an_end_lasts_until_the_records_end() -> None:
    hot = {"reasons": [HOT]}
    first, second = faults_of(
        watched(0, (10, "gpu throttled", hot), (12, "gpu not throttled", hot), (90, "gpu throttled", hot))
    )
    assert (first.lasted_ns, second.lasted_ns) == (2 * S, 10 * S)
    assert second.evidence == f"for 10.0 s, until its records end; {FAULTY}"


def test_the_power_limit_alone_is_one_mark_per_rank() -> None:
    capped = {"reasons": [CAP]}
    begins = [(at, "gpu throttled", capped) for at in (10, 20, 30)]
    ends = [(at, "gpu not throttled", capped) for at in (14, 21)]
    first, second = faults_of(watched(0, *begins, *ends), watched(1, begins[0], ends[0]))
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
            "GPU memory rows replaced: 1 for uncorrectable errors; reset the GPU to activate them",
        ),
        (
            "gpu rows remapped",
            {"uncorrected": 8, "pending": True, "failure": True},
            FaultKind.ROWS_REMAPPED,
            "GPU memory rows replaced: 8 for uncorrectable errors; one row could not be replaced, so replace the GPU",
        ),
    ],
)
def test_single_events_become_faults_with_a_description(
    name: str, details: Mapping[str, Any], kind: FaultKind, what: str
) -> None:
    (fault,) = faults_of(watched(0, (10, name, details)))
    assert (fault.kind, fault.what, fault.at_ns, fault.evidence) == (kind, what, 10 * S, FAULTY)


@pytest.mark.parametrize("name", ["gpu xid", "gpu throttled", "gpu ecc error", "gpu rows remapped", "gpu lost"])
def test_an_event_without_details_is_still_a_fault(name: str) -> None:
    bare = replace(watched(0, (10, name, {})), details={})
    (fault,) = faults_of(bare)
    assert fault.is_fault
    assert fault.evidence.endswith("reported by NVML")


def test_two_ranks_have_two_gpus() -> None:
    xid = (10, "gpu xid", {"xid": 31, "meaning": "page fault"})
    assert [fault.ranks for fault in faults_of(watched(0, xid), watched(1, xid))] == [(0,), (1,)]


def test_hardware_events_are_not_marks_as_well() -> None:
    run: Timeline = timeline(watched(0, (10, "gpu xid", {"xid": 31}), (11, "my own", {"xid": 31})))
    assert [mark.what for mark in marks(run)] == ["my own: xid 31, gpu GPU-1"]
