"""Faults of the ranks' GPUs that the driver reports: slowed clocks, ECC errors, remapped rows, XIDs, a lost GPU."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from traincope.analysis.confidence import HIGH
from traincope.analysis.faults.anomalies.links import FEW
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.events import NO_STEP
from traincope.store.segments.segments import recorder_events
from traincope.timeline import RankTimeline, Timeline

THROTTLED = "gpu throttled"
NOT_THROTTLED = "gpu not throttled"
ECC_ERROR = "gpu ecc error"
ROWS_REMAPPED = "gpu rows remapped"
XID = "gpu xid"
LOST = "gpu lost"
NVLINK_ERRORS = "gpu nvlink errors"
HARDWARE_EVENTS = frozenset({THROTTLED, NOT_THROTTLED, ECC_ERROR, ROWS_REMAPPED, XID, LOST, NVLINK_ERRORS})
"""Events that become faults here, by the names that the recorder gives them."""
POWER_CAP = "software power cap"
"""The one reason that is not a fault: a GPU under full load is often held at its power limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """One hardware event of a rank."""

    name: str
    at_ns: int
    step: int
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """An error of a rank's GPU, by NVIDIA's number."""

    rank: int
    at_ns: int
    number: str
    gpu: str
    """NVML's UUID; empty if the details were lost."""


def xids(timeline: Timeline) -> Iterator[Xid]:
    """XIDs of all ranks, unordered. `hardware_faults` describes them in words."""
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    for rank in timeline.ranks:
        for event in _events(rank, details[rank.rank]):
            if event.name == XID:
                number, gpu = event.details.get("xid", "unknown"), event.details.get("gpu", "")
                yield Xid(rank=rank.rank, at_ns=event.at_ns, number=str(number), gpu=str(gpu))


def hardware_faults(timeline: Timeline) -> Iterator[Fault]:
    """Faults of all ranks' GPUs, unordered. Each rank has its own GPU, so faults of two ranks are never merged."""
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    for rank in timeline.ranks:
        events = sorted(_events(rank, details[rank.rank]), key=lambda event: event.at_ns)
        yield from _throttled(rank, events)
        yield from _nvlinks(rank, events)
        for event in events:
            if event.name not in (THROTTLED, NOT_THROTTLED, NVLINK_ERRORS):
                kind, what = _described(event)
                yield _fault(kind, rank, event, what=what)


def _events(rank: RankTimeline, details_by_group: Mapping[int, Mapping[str, Any]]) -> Iterator[_Event]:
    for records in rank.threads.values():
        for record in recorder_events(records):
            name = rank.name(int(record["name"]))
            if name in HARDWARE_EVENTS:
                details = details_by_group.get(int(record["group"]), {})
                yield _Event(name=name, at_ns=int(record["start_ns"]), step=int(record["step"]), details=details)


def _described(event: _Event) -> tuple[FaultKind, str]:
    """Kind and description of an event. Lost details are left out."""
    details = event.details
    if event.name == XID:
        return FaultKind.XID, f"XID {details.get('xid', 'unknown')}: {details.get('meaning', 'its details are lost')}"
    if event.name == LOST:
        return FaultKind.GPU_LOST, f"the GPU is lost: {details.get('why', 'NVML does not reach it')}"
    if event.name == ROWS_REMAPPED:
        return FaultKind.ROWS_REMAPPED, _rows(details)
    if details.get("uncorrected") or "corrected" not in details:
        return FaultKind.ECC_ERROR, f"uncorrectable ECC errors: {details.get('uncorrected', 'their details are lost')}"
    return FaultKind.ECC_CORRECTED, f"corrected ECC errors: {details['corrected']}"


def _rows(details: Mapping[str, Any]) -> str:
    rows = f"GPU memory rows replaced: {details.get('uncorrected', '?')} for uncorrectable errors"
    if details.get("failure"):
        return f"{rows}; one row could not be replaced, so replace the GPU"
    return f"{rows}; reset the GPU to activate them" if details.get("pending") else rows


def _throttled(rank: RankTimeline, events: list[_Event]) -> Iterator[Fault]:
    """Pair each begin of throttling with the last end of its reasons. The power cap alone is one entry per rank."""
    ends = _ends(events)
    capped: list[tuple[_Event, int]] = []
    for event in (event for event in events if event.name == THROTTLED):
        reasons = _reasons(event)
        over = [next((at for at in ends[reason] if at > event.at_ns), None) for reason in reasons]
        last_ns = max((rank.last_ns if at is None else at for at in over), default=rank.last_ns)
        if reasons == [POWER_CAP]:
            capped.append((event, last_ns - event.at_ns))
            continue
        what = f"the GPU is slowed down: {', '.join(reasons) or 'its details are lost'}"
        lasted = f"for {(last_ns - event.at_ns) / 1e9:.1f} s"
        duration = f"{lasted}, until its records end" if None in over or not over else lasted
        yield _fault(FaultKind.THROTTLED, rank, event, what=what, duration=duration, lasted_ns=last_ns - event.at_ns)
    if capped:
        times = "once" if len(capped) == 1 else f"{len(capped)} times"
        what = f"the GPU is held at its power limit, {times}"
        yield _fault(FaultKind.POWER_CAPPED, rank, capped[0][0], what=what, lasted_ns=sum(ns for _, ns in capped))


def _nvlinks(rank: RankTimeline, events: list[_Event]) -> Iterator[Fault]:
    """One fault for the errors of all NVLinks in the run, from its first event on."""
    grown = [event for event in events if event.name == NVLINK_ERRORS]
    errors = sum(int(event.details.get("errors", 0)) for event in grown)
    if errors >= FEW:
        what = f"the GPU's NVLinks had {errors:,} errors (CRC, replay, recovery)"
        yield _fault(FaultKind.LINK_ERRORS, rank, grown[0], what=what, lasted_ns=grown[-1].at_ns - grown[0].at_ns)


def _ends(events: list[_Event]) -> Mapping[str, list[int]]:
    """Reason -> times at which it ended, ascending."""
    ends: dict[str, list[int]] = defaultdict(list)
    for event in (event for event in events if event.name == NOT_THROTTLED):
        for reason in _reasons(event):
            ends[reason].append(event.at_ns)
    return ends


def _reasons(event: _Event) -> list[str]:
    return [str(reason) for reason in event.details.get("reasons", ())]


def _fault(
    kind: FaultKind, rank: RankTimeline, event: _Event, *, what: str, duration: str = "", lasted_ns: int | None = None
) -> Fault:
    details = event.details
    within = f"it began up to {details['seen_within_seconds']} s earlier" if "seen_within_seconds" in details else ""
    sources = [
        f"reported by NVML of {details['gpu']}" if "gpu" in details else "reported by NVML",
        str(details.get("of", "")),
    ]
    return Fault(
        kind=kind,
        at_ns=event.at_ns,
        ranks=(rank.rank,),
        step=None if event.step == NO_STEP else event.step,
        what=what,
        evidence="; ".join(filter(None, (duration, *sources, within))),
        confidence=HIGH,
        lasted_ns=lasted_ns,
    )
