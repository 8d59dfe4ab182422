"""A rank's records as intervals with names, ready to be drawn: outer ones before those inside them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.events import NO_STEP, OPEN, Flag, Kind, Phase
from traincope.timeline import RankTimeline
from traincope.timeline.timeline import TRAINING_THREAD

IN_THREAD = (Kind.PHASE, Kind.ACTION, Kind.STALL, Kind.SPAN)
"""What a thread is in; a collective may be under way beside it."""


class Interval(NamedTuple):
    """One record with a begin and an end. Times are ns on the run's axis."""

    start_ns: int
    end_ns: int
    """Of one that is still open, the last instant of its rank."""
    open: bool
    kind: Kind
    name: str
    """Alike for what is alike: `forward GPT`, `F`, `all_gather`, `wait for all_gather`, `step`."""
    step: int | None
    axis: str | None
    """Of collectives and waits."""
    sequence: int
    """Of a collective its count on its group, of a pipeline action its microbatch."""
    peer: int
    """Of a collective its root or the other end, of a pipeline action its stage."""
    value: int
    flags: int


def in_thread(rank: RankTimeline, thread: str = TRAINING_THREAD, *, device: bool = False) -> NDArray[np.void]:
    """What a thread was in; with `device` what was measured there between two device events."""
    records = rank.threads[thread]
    measured = records["flags"] & Flag.DEVICE > 0
    return outer_first(rank, records[np.isin(records["kind"], IN_THREAD) & (measured == device)])


def collectives(rank: RankTimeline) -> NDArray[np.void]:
    """Of all its threads."""
    records = np.concatenate(list(rank.threads.values()))
    return outer_first(rank, records[records["kind"] == Kind.COLLECTIVE])


def steps(rank: RankTimeline) -> NDArray[np.void]:
    """Those that trained, the one that was never finished too."""
    marks = rank.of_kind(Kind.STEP)
    return outer_first(rank, marks[marks["flags"] & Flag.PARTIAL == 0])


def outer_first(rank: RankTimeline, records: NDArray[np.void]) -> NDArray[np.void]:
    """In order of begin, of those that begin together the longer first. Open ends stay open."""
    ends = np.where(records["end_ns"] == OPEN, rank.last_ns, records["end_ns"])
    return records[np.lexsort((-ends, records["start_ns"]))]


def intervals(rank: RankTimeline, records: NDArray[np.void]) -> Iterator[Interval]:
    """One a record, in the same order."""
    starts, raw_ends = records["start_ns"].tolist(), records["end_ns"]
    ends = np.maximum(np.where(raw_ends == OPEN, rank.last_ns, raw_ends), records["start_ns"]).tolist()
    kinds, names = [Kind(kind) for kind in records["kind"].tolist()], titles(rank, records)
    rest = (records[name].tolist() for name in ("step", "group", "sequence", "peer", "value", "flags"))
    columns = zip(starts, ends, (raw_ends == OPEN).tolist(), kinds, names, *rest, strict=True)
    for start, end, is_open, kind, name, step, group, sequence, peer, value, flags in columns:
        axis = rank.axis(group) if kind in (Kind.COLLECTIVE, Kind.STALL) else None
        at = None if step == NO_STEP else step
        yield Interval(start, end, is_open, kind, name, at, axis, sequence, peer, value, flags)


def titles(rank: RankTimeline, records: NDArray[np.void]) -> list[str]:
    """What each record is called."""
    known: dict[tuple[int, int, int], str] = {}
    found = []
    for key in zip(records["kind"].tolist(), records["phase"].tolist(), records["name"].tolist(), strict=True):
        if key not in known:
            known[key] = _title(Kind(key[0]), Phase(key[1]), rank.name(key[2]))
        found.append(known[key])
    return found


def _title(kind: Kind, phase: Phase, name: str) -> str:
    if kind is Kind.STEP:
        return "step"
    if kind is Kind.STALL:
        return f"wait for {name}"
    if kind is Kind.PHASE:
        word = phase.name.lower().replace("_", " ")
        return word if name in ("", word, phase.name.lower()) else f"{word} {name}"
    return name


def lanes(starts_ns: Sequence[int], ends_ns: Sequence[int]) -> list[int]:
    """Where each interval goes, so that on a lane all are inside one another or apart; they come outer first."""
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
