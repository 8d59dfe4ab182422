"""Marks that the run recorded: checkpoints, evaluations, changes of the recorder's level, events."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.confidence import HIGH
from traincope.analysis.faults.anomalies.hardware import HARDWARE_EVENTS
from traincope.analysis.faults.anomalies.links import LINK_EVENTS
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.events import (
    BUSY_THREAD,
    CHECKPOINT_FAILED,
    CHECKPOINT_SAVED,
    DEBUG_TOOL,
    EXCEPTION,
    FIRST_JUMP,
    FIRST_NOT_FINITE,
    GROUP_DESTROYED,
    LEARNING_RATES,
    LEFT,
    NO_STEP,
    OPEN,
    OUTSIDE_DDP,
    OUTSIDE_UNITS,
    RECORDER_LEVEL,
    REQUESTED_WINDOW,
    ROLLBACK,
    SIGNAL_HANDLED,
    SKIPPED_STEP,
    TENSOR_CENSUS,
    THREAD_ENDED,
    Flag,
    Kind,
    Phase,
)
from traincope.timeline import RankTimeline, Timeline
from traincope.timeline.intervals.union import Union

APART_NS = 1_000_000_000
"""Largest distance of stretches of one checkpoint or evaluation outside of steps."""
MAX_EVENTS = 64
"""Largest number of shown events of one name. Saved checkpoints are always shown, because the job's time is counted by
them."""
KINDS = {
    CHECKPOINT_FAILED: FaultKind.CHECKPOINT_FAILED,
    RECORDER_LEVEL: FaultKind.RECORDER_LEVEL,
    REQUESTED_WINDOW: FaultKind.REQUESTED_WINDOW,
}
"""Events of the recorder by name."""
SHOWN_ELSEWHERE = frozenset(
    {
        *(EXCEPTION, LEFT, THREAD_ENDED, FIRST_JUMP, FIRST_NOT_FINITE, GROUP_DESTROYED, SKIPPED_STEP, ROLLBACK),
        *(TENSOR_CENSUS, OUTSIDE_DDP, OUTSIDE_UNITS, LEARNING_RATES, BUSY_THREAD, DEBUG_TOOL, *HARDWARE_EVENTS),
        *LINK_EVENTS,
    }
)
"""Events that appear as the end of their rank or are a regular part of it, as evidence of a stop, as values that are
not finite, as skipped steps and rollbacks, as faults of its GPU, or in the findings about its memory, its gradients,
its learning rates, its lateness and tools that slow it down.
"""
NO_END, RAISED = "its end is not recorded", "it raised an exception"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """An interval on one rank. Intervals of one name and step form one mark."""

    name: str
    rank: int
    step: int
    start_ns: int
    end_ns: int
    failed: str = ""
    """Why it is not complete."""


def marks(timeline: Timeline) -> Iterator[Fault]:
    """Marks of all ranks, unordered. Some events are faults."""
    checkpoints = [stretch for rank in timeline.ranks for stretch in _checkpoints(rank)]
    yield from (_mark(FaultKind.CHECKPOINT, stretches) for stretches in _joined(checkpoints))
    evaluations = [stretch for rank in timeline.ranks for stretch in _evaluations(rank)]
    yield from (_mark(FaultKind.EVALUATION, stretches) for stretches in _joined(evaluations))
    yield from _events(timeline)


def _checkpoints(rank: RankTimeline) -> Iterator[_Stretch]:
    for records in rank.threads.values():
        stalls = records[(records["kind"] == Kind.PHASE) & (records["phase"] == Phase.CHECKPOINT_STALL)]
        for stall in stalls:
            open_ = bool(stall["end_ns"] == OPEN)
            yield _Stretch(
                name=rank.name(int(stall["name"])),
                rank=rank.rank,
                step=int(stall["step"]),
                start_ns=int(stall["start_ns"]),
                end_ns=rank.last_ns if open_ else int(stall["end_ns"]),
                failed=NO_END if open_ else RAISED if stall["flags"] & Flag.RAISED else "",
            )


def _evaluations(rank: RankTimeline) -> Iterator[_Stretch]:
    """Evaluations: one stretch per step; outside of steps, one per record. A forward begins when it is compiled."""
    records = rank.main
    chosen = records[(records["phase"] == Phase.EVALUATION) & (records["flags"] & Flag.DEVICE == 0)]
    chosen = rank.closed(chosen[np.isin(chosen["kind"], (Kind.PHASE, Kind.ACTION))])
    compiling = rank.closed(records[(records["kind"] == Kind.PHASE) & (records["phase"] == Phase.COMPILE)])
    last = np.searchsorted(compiling["start_ns"], chosen["end_ns"]) - 1
    compiled_ns = np.append(compiling["end_ns"], 0)[last]
    chosen["start_ns"] = np.clip(compiled_ns, chosen["start_ns"], chosen["end_ns"])
    for step in np.unique(chosen["step"]).tolist():
        in_step = chosen[chosen["step"] == step]
        spans = in_step if step == NO_STEP else _span(in_step)
        for start_ns, end_ns in zip(spans["start_ns"].tolist(), spans["end_ns"].tolist(), strict=True):
            yield _Stretch(name="evaluation", rank=rank.rank, step=step, start_ns=start_ns, end_ns=end_ns)


def _span(records: NDArray[np.void]) -> NDArray[np.void]:
    """One record from the start of the first to the end of the last."""
    span = records[:1].copy()
    span["end_ns"] = records["end_ns"].max()
    return span


def _joined(stretches: list[_Stretch]) -> Iterator[list[_Stretch]]:
    """Group stretches of one name and step over all ranks; outside of steps, those that lie close."""
    open_groups: dict[tuple[str, int], list[_Stretch]] = {}
    for stretch in sorted(stretches, key=lambda stretch: stretch.start_ns):
        key = (stretch.name, stretch.step)
        before = open_groups.get(key)
        apart = before is not None and stretch.start_ns - max(other.end_ns for other in before) > APART_NS
        if before is not None and stretch.step == NO_STEP and apart:
            yield before
            before = None
        open_groups[key] = [*(before or ()), stretch]
    yield from open_groups.values()


def _mark(kind: FaultKind, stretches: list[_Stretch]) -> Fault:
    first = min(stretches, key=lambda stretch: stretch.start_ns)
    by_rank: dict[int, list[_Stretch]] = defaultdict(list)
    for stretch in stretches:
        by_rank[stretch.rank].append(stretch)
    return Fault(
        kind=kind,
        at_ns=first.start_ns,
        ranks=tuple(sorted({stretch.rank for stretch in stretches})),
        step=None if first.step == NO_STEP else first.step,
        what=first.name,
        evidence=next((stretch.failed for stretch in stretches if stretch.failed), ""),
        confidence=HIGH,
        lasted_ns=max(_length_ns(of_rank, whole=kind is FaultKind.EVALUATION) for of_rank in by_rank.values()),
        end_ns=max(stretch.end_ns for stretch in stretches),
    )


def _length_ns(stretches: Sequence[_Stretch], *, whole: bool) -> int:
    """Time that stretches of one rank cover; with those between them if `whole`, as an evaluation loads its data."""
    starts, ends = (
        np.array([getattr(stretch, end) for stretch in stretches], dtype=np.int64) for end in ("start_ns", "end_ns")
    )
    return int(ends.max() - starts.min()) if whole else Union.of(starts, ends).length_ns


def _events(timeline: Timeline) -> Iterator[Fault]:
    """Events, merged over ranks that record the same in the same step."""
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    same: dict[tuple[str, int, str, bool], list[tuple[int, int]]] = defaultdict(list)
    for rank in timeline.ranks:
        for records in rank.threads.values():
            for event in records[records["kind"] == Kind.EVENT]:
                name, values = rank.name(int(event["name"])), details[rank.rank].get(int(event["group"]), {})
                given = bool(event["flags"] & Flag.GIVEN)
                if given or name not in SHOWN_ELSEWHERE:
                    key = (name, int(event["step"]), _text(name, values), given)
                    same[key].append((int(event["start_ns"]), rank.rank))
    counts: dict[str, int] = defaultdict(int)
    for (name, step, text, given), occurrences in sorted(same.items(), key=lambda item: min(item[1])):
        counts[name] += 1
        if counts[name] <= MAX_EVENTS or name == CHECKPOINT_SAVED:
            kind = FaultKind.EVENT if given else KINDS.get(name, FaultKind.EVENT)
            yield _event(kind, step, text, occurrences, last=counts[name] == MAX_EVENTS and name != CHECKPOINT_SAVED)


def _event(kind: FaultKind, step: int, text: str, occurrences: list[tuple[int, int]], *, last: bool) -> Fault:
    return Fault(
        kind=kind,
        at_ns=min(occurrences)[0],
        ranks=tuple(sorted({rank for _, rank in occurrences})),
        step=None if step == NO_STEP else step,
        what=text,
        evidence=f"events of this name after the {MAX_EVENTS}th are left out" if last else "",
        confidence=HIGH,
    )


def _text(name: str, details: Mapping[str, Any]) -> str:
    if name == RECORDER_LEVEL and {"level", "was", "why"} <= details.keys():
        return f"{RECORDER_LEVEL} {details['was']} -> {details['level']}: {details['why']}"
    if name == SIGNAL_HANDLED and "signal" in details:
        return f"got {details['signal']}, and handled it"
    if name == REQUESTED_WINDOW and {"why", "first_step", "steps"} <= details.keys():
        return f"{REQUESTED_WINDOW} of {details['steps']} steps from step {details['first_step']}: {details['why']}"
    return f"{name}: {_words(details)}" if details else name


def _words(value: Any) -> str:
    """Format details as words: `to 64, from 32`."""
    if isinstance(value, Mapping):
        parts = (f"({_words(part)})" if isinstance(part, Mapping | list) else _words(part) for part in value.values())
        return ", ".join(f"{key} {part}" for key, part in zip(value, parts, strict=True))
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return "none" if value is None else str(value)
