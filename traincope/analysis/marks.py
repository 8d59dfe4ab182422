"""What was recorded as it happened: checkpoints, evaluations, the recorder's level, events."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.faults import Fault, FaultKind
from traincope.analysis.findings import HIGH
from traincope.analysis.hardware import HARDWARE_EVENTS
from traincope.events import NO_STEP, OPEN, Flag, Kind, Phase
from traincope.store.attempts import SAVED
from traincope.timeline import RankTimeline, Timeline

APART_NS = 1_000_000_000
"""Outside of steps, pieces of one checkpoint or evaluation lie no further apart."""
MOST_EVENTS = 64
"""Of one name; those after are not told, but for checkpoints that were saved, which the job's time is counted by."""
EXCEPTION = "exception"
"""An event that is told as the end of its rank."""
RECORDER_LEVEL = "recorder level"
KINDS = {"checkpoint failed": FaultKind.CHECKPOINT_FAILED, RECORDER_LEVEL: FaultKind.RECORDER_LEVEL}
"""Events of the recorder's own by name."""
TOLD_ELSEWHERE = frozenset({EXCEPTION, *HARDWARE_EVENTS})
"""Likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Something with a length on one rank; several of one name and step are one mark."""

    name: str
    rank: int
    step: int
    start_ns: int
    end_ns: int
    whole: bool = True


def marks(timeline: Timeline) -> Iterator[Fault]:
    """In no order; most are marks, some of the events are faults."""
    checkpoints = [piece for rank in timeline.ranks for piece in _checkpoints(rank)]
    yield from (_mark(FaultKind.CHECKPOINT, pieces) for pieces in _joined(checkpoints))
    evaluations = [piece for rank in timeline.ranks for piece in _evaluations(rank)]
    yield from (_mark(FaultKind.EVALUATION, pieces) for pieces in _joined(evaluations))
    yield from _events(timeline)


def _checkpoints(rank: RankTimeline) -> Iterator[_Piece]:
    for records in rank.threads.values():
        stalls = records[(records["kind"] == Kind.PHASE) & (records["phase"] == Phase.CHECKPOINT_STALL)]
        for stall in stalls:
            open_ = bool(stall["end_ns"] == OPEN)
            yield _Piece(
                name=rank.name(int(stall["name"])),
                rank=rank.rank,
                step=int(stall["step"]),
                start_ns=int(stall["start_ns"]),
                end_ns=rank.last_ns if open_ else int(stall["end_ns"]),
                whole=not open_,
            )


def _evaluations(rank: RankTimeline) -> Iterator[_Piece]:
    """One piece a step; outside of steps, one a record."""
    records = rank.main
    chosen = records[(records["phase"] == Phase.EVALUATION) & (records["flags"] & Flag.DEVICE == 0)]
    chosen = rank.closed(chosen[np.isin(chosen["kind"], (Kind.PHASE, Kind.ACTION))])
    for step in np.unique(chosen["step"]).tolist():
        there = chosen[chosen["step"] == step]
        spans = there if step == NO_STEP else _whole_span(there)
        for start_ns, end_ns in zip(spans["start_ns"].tolist(), spans["end_ns"].tolist(), strict=True):
            yield _Piece(name="evaluation", rank=rank.rank, step=step, start_ns=start_ns, end_ns=end_ns)


def _whole_span(records: NDArray[np.void]) -> NDArray[np.void]:
    """One record from the start of the first to the end of the last."""
    span = records[:1].copy()
    span["end_ns"] = records["end_ns"].max()
    return span


def _joined(pieces: list[_Piece]) -> Iterator[list[_Piece]]:
    """Those of one name and step, of all ranks; outside of steps, those that lie close."""
    together: dict[tuple[str, int], list[_Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.start_ns):
        key = (piece.name, piece.step)
        before = together.get(key)
        apart = before is not None and piece.start_ns - max(one.end_ns for one in before) > APART_NS
        if before is not None and piece.step == NO_STEP and apart:
            yield before
            before = None
        together[key] = [*(before or ()), piece]
    yield from together.values()


def _mark(kind: FaultKind, pieces: list[_Piece]) -> Fault:
    first = min(pieces, key=lambda piece: piece.start_ns)
    return Fault(
        kind=kind,
        at_ns=first.start_ns,
        ranks=tuple(sorted({piece.rank for piece in pieces})),
        step=None if first.step == NO_STEP else first.step,
        what=first.name,
        evidence="" if all(piece.whole for piece in pieces) else "it has no end",
        confidence=HIGH,
        lasted_ns=max(piece.end_ns for piece in pieces) - first.start_ns,
    )


def _events(timeline: Timeline) -> Iterator[Fault]:
    """Ranks that say the same in the same step are one."""
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    same: dict[tuple[str, int, str, bool], list[tuple[int, int]]] = defaultdict(list)
    for rank in timeline.ranks:
        for records in rank.threads.values():
            for event in records[records["kind"] == Kind.EVENT]:
                name, told = rank.name(int(event["name"])), details[rank.rank].get(int(event["group"]), {})
                given = bool(event["flags"] & Flag.GIVEN)
                if given or name not in TOLD_ELSEWHERE:
                    key = (name, int(event["step"]), _text(name, told), given)
                    same[key].append((int(event["start_ns"]), rank.rank))
    counts: dict[str, int] = defaultdict(int)
    for (name, step, text, given), there in sorted(same.items(), key=lambda item: min(item[1])):
        counts[name] += 1
        if counts[name] <= MOST_EVENTS or name == SAVED:
            kind = FaultKind.EVENT if given else KINDS.get(name, FaultKind.EVENT)
            yield _event(kind, step, text, there, last=counts[name] == MOST_EVENTS and name != SAVED)


def _event(kind: FaultKind, step: int, text: str, there: list[tuple[int, int]], *, last: bool) -> Fault:
    return Fault(
        kind=kind,
        at_ns=min(there)[0],
        ranks=tuple(sorted({rank for _, rank in there})),
        step=None if step == NO_STEP else step,
        what=text,
        evidence=f"events of this name are told up to the {MOST_EVENTS}th" if last else "",
        confidence=HIGH,
    )


def _text(name: str, details: Mapping[str, Any]) -> str:
    if name == RECORDER_LEVEL and {"level", "was", "why"} <= details.keys():
        return f"recorder level {details['was']} -> {details['level']}: {details['why']}"
    return f"{name} {json.dumps(details, sort_keys=True, default=str)}" if details else name
