"""Where collectives were called: in which block of the model, span or pipeline action, or at least in which phase.

The place of a collective is the innermost interval that was open on the calling thread, or else on the training
thread, when it was called; where it is waited for does not matter. Blocks are recorded at level 2 alone.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.host import Bools, Ints, Pieces
from traincope.analysis.stalls import StallSplit
from traincope.analysis.transfers import Transfers
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.instances import closed_collectives
from traincope.timeline.numbering import UNKNOWN, Numbering
from traincope.timeline.painting import NOBODY, painted

NOWHERE = ""
"""Nothing was recorded around the call."""
PLACES = np.isin(np.arange(256), (Kind.PHASE, Kind.ACTION, Kind.SPAN))
"""Kind -> whether a call lies in its records."""


class Called(NamedTuple):
    """One operation on one axis, called from one place."""

    axis: str
    operation: str
    place: str
    """E.g. "forward layers.3 (Block)"; NOWHERE where that is not known."""
    transfer_ns: int
    """On the wire, hidden or not."""
    wait_ns: int
    """The training thread stood still because peers were late."""
    exposed_ns: int
    """It stood still, waiting and transfer together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCalls:
    """One rank's, summed over its counted steps."""

    rank: int
    num_steps: int
    in_blocks: bool
    """Whether a block of the model was recorded around any of them."""
    calls: tuple[Called, ...]


def rank_calls(
    rank: RankTimeline, pieces: Pieces, split: StallSplit, *, counted: Bools, instances: Instances, wire: Transfers
) -> RankCalls:
    """What a rank called. `counted` says of each of its steps whether it counts."""
    places = _Places.of(rank, instances)
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for key, ns in _sent(rank, places, counted=counted, instances=instances, wire=wire):
        sums[key][0] += ns
    for key, wait_ns, exposed_ns in _stood_still(pieces, split, places, counted=counted):
        sums[key][1] += wait_ns
        sums[key][2] += exposed_ns
    return RankCalls(
        rank=rank.rank,
        num_steps=int(counted.sum()),
        in_blocks=places.in_blocks,
        calls=tuple(Called(*key, *ns) for key, ns in sums.items() if any(ns)),
    )


def all_calls(ranks: Iterable[RankCalls]) -> tuple[Called, ...]:
    """Summed over ranks."""
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for rank in ranks:
        for one in rank.calls:
            of = sums[one[:3]]
            for at, ns in enumerate(one[3:]):
                of[at] += ns
    return tuple(Called(*key, *ns) for key, ns in sums.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Of a rank's collectives."""

    names: tuple[str, ...]
    """The last is NOWHERE."""
    of_part: NDArray[np.int32]
    """Place of each of its parts, a position in `names`."""
    of_instance: NDArray[np.int32]
    """Of each instance; the last is for stalls of which it is not known."""
    in_blocks: bool

    @classmethod
    def of(cls, rank: RankTimeline, instances: Instances) -> "_Places":
        keys = np.concatenate([_keys(rank, records) for records in rank.threads.values()] or [np.empty(0, np.int64)])
        known = keys != NOBODY
        numbering = Numbering.of(keys[known])
        distinct = numbering.values
        place = np.full(len(keys), len(distinct), dtype=np.int32)
        place[known] = numbering.number(keys[known])
        of_instance = np.full(len(instances) + 1, len(distinct), dtype=np.int32)
        of_instance[instances.number[instances.parts_of[rank.rank]]] = place
        names = tuple(_named(rank, key) for key in distinct.tolist())
        blocks = any(Kind(key >> 40) is Kind.SPAN and (key >> 32) & 0xFF != Phase.NONE for key in distinct.tolist())
        return cls(names=(*names, NOWHERE), of_part=place, of_instance=of_instance, in_blocks=blocks)


def _keys(rank: RankTimeline, records: NDArray[np.void]) -> Ints:
    """What each collective of a thread was called in, as kind, phase and name in one number; NOBODY: in nothing."""
    called_ns = records["start_ns"][closed_collectives(records)]
    found = _innermost(rank, records, called_ns)
    lost = found == NOBODY
    if lost.any() and records is not rank.main:
        found[lost] = _innermost(rank, rank.main, called_ns[lost])
    return found


def _innermost(rank: RankTimeline, records: NDArray[np.void], at_ns: Ints) -> Ints:
    """Of the thread's places, as `_keys`."""
    found = np.full(len(at_ns), NOBODY, dtype=np.int64)
    inside = np.flatnonzero(PLACES[records["kind"]] & (records["flags"] & Flag.DEVICE == 0))
    if not len(at_ns) or not len(inside):
        return found
    starts, ends = records["start_ns"][inside], records["end_ns"][inside]
    ends = np.where(ends == OPEN, rank.last_ns, ends)
    if (starts[1:] == starts[:-1]).any():
        order = np.lexsort((-ends, starts))
        inside, starts, ends = inside[order], starts[order], ends[order]
    drawn = painted(starts, ends)
    piece = np.searchsorted(drawn.start_ns, at_ns, side="right") - 1
    held = (piece >= 0) & (at_ns < np.append(drawn.end_ns, 0)[piece])
    owner = inside[drawn.owner[piece[held]]]
    kind, phase, name = (records[field][owner].astype(np.int64) for field in ("kind", "phase", "name"))
    found[held] = kind << 40 | phase << 32 | name
    return found


def _named(rank: RankTimeline, key: int) -> str:
    """`F`, `backward`, `forward layers.3 (Block)`, or as `traincope.span()` called it."""
    kind, phase, name = Kind(key >> 40), Phase((key >> 32) & 0xFF), rank.name(key & 0xFFFFFFFF)
    word = phase.name.lower().replace("_", " ")
    if kind is Kind.ACTION or phase is Phase.NONE:
        return name
    return word if name in ("", word, phase.name.lower()) else f"{word} {name}"


def _sent(
    rank: RankTimeline, places: _Places, *, counted: Bools, instances: Instances, wire: Transfers
) -> Iterator[tuple[tuple[str, str, str], int]]:
    """What was on the wire, of the counted steps."""
    own = instances.parts_of[rank.rank]
    known = Numbering.of(np.array([step.number for step in rank.steps], dtype=np.int64)[counted])
    inside = known.number(instances.parts.step[own].astype(np.int64)) != UNKNOWN
    inside &= ~instances.parts.evaluating[own]
    axis, operation = instances.parts.axis_code[own][inside], instances.parts.operation_code[own][inside]
    sums = _summed((axis, operation, places.of_part[inside]), wire.ns[instances.number[own][inside]])
    for (at, of, place), (ns,) in sums:
        yield (instances.axes[at], instances.operations[of], places.names[place]), ns


def _stood_still(
    pieces: Pieces, split: StallSplit, places: _Places, *, counted: Bools
) -> Iterator[tuple[tuple[str, str, str], int, int]]:
    """What the training thread lost to it: waiting, and all."""
    inside = np.append(counted, False)[pieces.step[split.at]]
    place = places.of_instance[split.instance[inside]]
    wait_ns = split.wait_ns[inside]
    codes = split.axis_code[inside], split.operation_code[inside], place
    for (at, of, where), (wait, exposed) in _summed(codes, wait_ns, wait_ns + split.transfer_ns[inside]):
        yield (split.axes[at], split.operations[of], places.names[where]), wait, exposed


def _summed(codes: tuple[NDArray[np.integer], ...], *values: Ints) -> Iterator[tuple[list[int], list[int]]]:
    """Of each combination of codes that there is: the codes, and the sums of the values."""
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
