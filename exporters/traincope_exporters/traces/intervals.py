"""Named intervals of a rank's events, outer ones before those inside them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.events import DEVICE_MESSAGE, NO_STEP, OPEN, Flag, Kind, Phase
from traincope.timeline import RankTimeline
from traincope.timeline.timeline import TRAINING_THREAD

IN_THREAD = (Kind.PHASE, Kind.ACTION, Kind.STALL, Kind.SPAN)
"""Kinds of intervals in a thread. A collective may run at the same time."""


class Interval(NamedTuple):
    """One event with start and end, in ns on the run's axis."""

    start_ns: int
    end_ns: int
    """For an open event the last instant of its rank."""
    open: bool
    kind: Kind
    name: str
    """The same for events of the same kind: `forward GPT`, `F`, `all_gather`, `wait for all_gather`, `step`."""
    step: int | None
    axis: str | None
    """Axis of a collective or wait."""
    sequence: int
    """Number of a collective in its group; microbatch of a pipeline action."""
    peer: int
    """Root or other end of a collective; stage of a pipeline action."""
    value: int
    """0 for a wait for a message on a device, whose bytes are unknown."""
    flags: int


def in_thread(rank: RankTimeline, thread: str = TRAINING_THREAD, *, device: bool = False) -> NDArray[np.void]:
    """Intervals of a thread. `device`: those measured between two device events."""
    records = rank.threads[thread]
    measured = records["flags"] & Flag.DEVICE > 0
    return outer_first(rank, records[np.isin(records["kind"], IN_THREAD) & (measured == device)])


def collectives(rank: RankTimeline) -> NDArray[np.void]:
    """Collectives of all threads of a rank."""
    records = np.concatenate(list(rank.threads.values()))
    return outer_first(rank, records[records["kind"] == Kind.COLLECTIVE])


def steps(rank: RankTimeline) -> NDArray[np.void]:
    """Training steps of a rank, including an unfinished one."""
    marks = rank.of_kind(Kind.STEP)
    return outer_first(rank, marks[marks["flags"] & Flag.PARTIAL == 0])


def outer_first(rank: RankTimeline, records: NDArray[np.void]) -> NDArray[np.void]:
    """Sort by start; of equal starts the longer one first. Open events stay open."""
    ends = np.where(records["end_ns"] == OPEN, rank.last_ns, records["end_ns"])
    return records[np.lexsort((-ends, records["start_ns"]))]


def intervals(rank: RankTimeline, records: NDArray[np.void]) -> Iterator[Interval]:
    """One interval per event, in the same order."""
    starts, raw_ends = records["start_ns"].tolist(), records["end_ns"]
    ends = np.maximum(np.where(raw_ends == OPEN, rank.last_ns, raw_ends), records["start_ns"]).tolist()
    kinds, names = [Kind(kind) for kind in records["kind"].tolist()], titles(rank, records)
    rest = (records[name].tolist() for name in ("step", "group", "sequence", "peer", "flags"))
    timed = (records["kind"] == Kind.STALL) & (records["flags"] & DEVICE_MESSAGE == DEVICE_MESSAGE)
    values = np.where(timed, 0, records["value"]).tolist()
    columns = zip(starts, ends, (raw_ends == OPEN).tolist(), kinds, names, values, *rest, strict=True)
    for start, end, is_open, kind, name, value, step, group, sequence, peer, flags in columns:
        axis = rank.axis(group) if kind in (Kind.COLLECTIVE, Kind.STALL) else None
        at = None if step == NO_STEP else step
        yield Interval(start, end, is_open, kind, name, at, axis, sequence, peer, value, flags)


def titles(rank: RankTimeline, records: NDArray[np.void]) -> list[str]:
    """Name of each event for display."""
    known: dict[tuple[int, int, int], str] = {}
    titles_in_order = []
    for key in zip(records["kind"].tolist(), records["phase"].tolist(), records["name"].tolist(), strict=True):
        if key not in known:
            known[key] = _title(Kind(key[0]), Phase(key[1]), rank.name(key[2]))
        titles_in_order.append(known[key])
    return titles_in_order


def _title(kind: Kind, phase: Phase, name: str) -> str:
    if kind is Kind.STEP:
        return "step"
    if kind is Kind.STALL:
        return f"wait for {name}"
    if kind is Kind.PHASE and phase is not Phase.NAMED:
        word = phase.name.lower().replace("_", " ")
        return word if name in ("", word, phase.name.lower()) else f"{word} {name}"
    return name


def lanes(starts_ns: Sequence[int], ends_ns: Sequence[int]) -> list[int]:
    """Lane of each interval, so that intervals on a lane nest or are apart. The intervals come outer first."""
    open_ends: list[list[int]] = []
    lane_of = []
    for start, end in zip(starts_ns, ends_ns, strict=True):
        lane_of.append(_lane(open_ends, start, end))
    return lane_of


def _lane(open_ends: list[list[int]], start: int, end: int) -> int:
    for number, ends in enumerate(open_ends):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            return number
    open_ends.append([end])
    return len(open_ends) - 1
