"""Call sites of collectives: the block of the model, span, pipeline action or phase that called them.

The place of a collective is the innermost interval that was open on the calling thread when it was called, or on the
training thread if the calling thread had none. The place of the wait does not matter. Only level 2 records blocks.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.stalls import StallSplit
from traincope.analysis.attribution.thread_slices import ThreadSlices
from traincope.analysis.attribution.transfers import Transfers
from traincope.arrays import Bools, Ints
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.collectives.instances import closed_collectives
from traincope.timeline.intervals.numbering import UNKNOWN, Numbering
from traincope.timeline.intervals.painting import ABSENT, painted

NOWHERE = ""
"""Place of a call without a recorded interval around it."""
PLACES = np.isin(np.arange(256), (Kind.PHASE, Kind.ACTION, Kind.SPAN))
"""Kind -> True if its records are places of calls."""


class CallSite(NamedTuple):
    """Sums of one operation on one axis, called from one place."""

    axis: str
    operation: str
    place: str
    """For example "forward layers.3 (Block)"; NOWHERE if unknown."""
    transfer_ns: int
    """On the wire, hidden or not."""
    wait_ns: int
    """Exposed wait: stall time of the training thread because peers were late."""
    exposed_ns: int
    """Stall time of the training thread: wait and transfer together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCalls:
    """Calls of one rank, summed over its counted steps."""

    rank: int
    num_steps: int
    in_blocks: bool
    """True if a block of the model was recorded around any of them."""
    calls: tuple[CallSite, ...]


def rank_calls(
    rank: RankTimeline,
    slices: ThreadSlices,
    split: StallSplit,
    *,
    counted: Bools,
    instances: Instances,
    wire: Transfers,
) -> RankCalls:
    """Sum a rank's collectives by call site. `counted` marks its counted steps."""
    places = _Places.of(rank, instances)
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for key, ns in _transfer_sums(rank, places, counted=counted, instances=instances, wire=wire):
        sums[key][0] += ns
    for key, wait_ns, exposed_ns in _exposed_sums(slices, split, places, counted=counted):
        sums[key][1] += wait_ns
        sums[key][2] += exposed_ns
    return RankCalls(
        rank=rank.rank,
        num_steps=int(counted.sum()),
        in_blocks=places.in_blocks,
        calls=tuple(CallSite(*key, *ns) for key, ns in sums.items() if any(ns)),
    )


def all_calls(ranks: Iterable[RankCalls]) -> tuple[CallSite, ...]:
    """Sum the calls over ranks."""
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for rank in ranks:
        for call in rank.calls:
            of = sums[call[:3]]
            for at, ns in enumerate(call[3:]):
                of[at] += ns
    return tuple(CallSite(*key, *ns) for key, ns in sums.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Places of a rank's collectives."""

    names: tuple[str, ...]
    """Names of the places; the last is NOWHERE."""
    of_part: NDArray[np.int32]
    """Place of each of the rank's parts, as a position in `names`."""
    of_instance: NDArray[np.int32]
    """Place of each instance; the last entry is for stalls of unknown instances."""
    in_blocks: bool

    @classmethod
    def of(cls, rank: RankTimeline, instances: Instances) -> "_Places":
        keys = np.concatenate([_keys(rank, records) for records in rank.threads.values()] or [np.empty(0, np.int64)])
        known = keys != ABSENT
        numbering = Numbering.of(keys[known])
        distinct = numbering.values
        place = np.full(len(keys), len(distinct), dtype=np.int32)
        place[known] = numbering.number(keys[known])
        of_instance = np.full(len(instances) + 1, len(distinct), dtype=np.int32)
        of_instance[instances.number[instances.parts_of[rank.rank]]] = place
        names = tuple(_place_name(rank, key) for key in distinct.tolist())
        blocks = any(Kind(key >> 40) is Kind.SPAN and (key >> 32) & 0xFF != Phase.NONE for key in distinct.tolist())
        return cls(names=(*names, NOWHERE), of_part=place, of_instance=of_instance, in_blocks=blocks)


def _keys(rank: RankTimeline, records: NDArray[np.void]) -> Ints:
    """Return the place of each collective of a thread: kind, phase and name in one number, or ABSENT."""
    call_ns = records["start_ns"][closed_collectives(records)]
    keys = _innermost(rank, records, call_ns)
    unplaced = keys == ABSENT
    if unplaced.any() and records is not rank.main:
        keys[unplaced] = _innermost(rank, rank.main, call_ns[unplaced])
    return keys


def _innermost(rank: RankTimeline, records: NDArray[np.void], at_ns: Ints) -> Ints:
    """Return the innermost place of the thread at each instant, encoded as in `_keys`."""
    keys = np.full(len(at_ns), ABSENT, dtype=np.int64)
    inside = np.flatnonzero(PLACES[records["kind"]] & (records["flags"] & Flag.DEVICE == 0))
    if not len(at_ns) or not len(inside):
        return keys
    starts, ends = records["start_ns"][inside], records["end_ns"][inside]
    ends = np.where(ends == OPEN, rank.last_ns, ends)
    if (starts[1:] == starts[:-1]).any():
        order = np.lexsort((-ends, starts))
        inside, starts, ends = inside[order], starts[order], ends[order]
    innermost = painted(starts, ends)
    at_piece = np.searchsorted(innermost.start_ns, at_ns, side="right") - 1
    held = (at_piece >= 0) & (at_ns < np.append(innermost.end_ns, 0)[at_piece])
    owner = inside[innermost.owner[at_piece[held]]]
    kind, phase, name = (records[field][owner].astype(np.int64) for field in ("kind", "phase", "name"))
    keys[held] = kind << 40 | phase << 32 | name
    return keys


def _place_name(rank: RankTimeline, key: int) -> str:
    """Return a place's name: `F`, `backward`, `forward layers.3 (Block)`, or the name given to `traincope.span()`."""
    kind, phase, name = Kind(key >> 40), Phase((key >> 32) & 0xFF), rank.name(key & 0xFFFFFFFF)
    word = phase.name.lower().replace("_", " ")
    if kind is Kind.ACTION or phase is Phase.NONE:
        return name
    return word if name in ("", word, phase.name.lower()) else f"{word} {name}"


def _transfer_sums(
    rank: RankTimeline, places: _Places, *, counted: Bools, instances: Instances, wire: Transfers
) -> Iterator[tuple[tuple[str, str, str], int]]:
    """Sum the time on the wire in counted steps, by axis, operation and place."""
    rank_parts = instances.parts_of[rank.rank]
    known = Numbering.of(np.array([step.number for step in rank.steps], dtype=np.int64)[counted])
    inside = known.number(instances.parts.step[rank_parts].astype(np.int64)) != UNKNOWN
    inside &= ~instances.parts.evaluating[rank_parts]
    axis, operation = instances.parts.axis_code[rank_parts][inside], instances.parts.operation_code[rank_parts][inside]
    sums = _summed((axis, operation, places.of_part[inside]), wire.ns[instances.number[rank_parts][inside]])
    for (at, of, place), (ns,) in sums:
        yield (instances.axes[at], instances.operations[of], places.names[place]), ns


def _exposed_sums(
    slices: ThreadSlices, split: StallSplit, places: _Places, *, counted: Bools
) -> Iterator[tuple[tuple[str, str, str], int, int]]:
    """Sum the training thread's stalls in counted steps: wait, and wait + transfer."""
    inside = np.append(counted, False)[slices.step[split.at]]
    place = places.of_instance[split.instance[inside]]
    wait_ns = split.wait_ns[inside]
    codes = split.axis_code[inside], split.operation_code[inside], place
    for (at, of, where), (wait, exposed) in _summed(codes, wait_ns, wait_ns + split.transfer_ns[inside]):
        yield (split.axes[at], split.operations[of], places.names[where]), wait, exposed


def _summed(codes: tuple[NDArray[np.integer], ...], *values: Ints) -> Iterator[tuple[list[int], list[int]]]:
    """Yield each combination of codes that occurs, and the sums of its values."""
    sizes = [int(code.max(initial=0)) + 1 for code in codes]
    joined = np.zeros(len(codes[0]), dtype=np.int64)
    for code, size in zip(codes, sizes, strict=True):
        joined = joined * size + code
    numbering = Numbering.of(joined)
    number, sums = numbering.number(joined), np.zeros((len(values), len(numbering)), dtype=np.int64)
    for row, value in zip(sums, values, strict=True):
        np.add.at(row, number, value)
    apart = np.unravel_index(numbering.values, sizes)
    yield from zip(np.stack(apart, axis=1).tolist(), sums.T.tolist(), strict=True)
