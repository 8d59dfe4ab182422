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
from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.arrays import Bools, Ints
from traincope.events import ELEMENT_SHIFT, OPEN, Element, Flag, Kind, Phase
from traincope.timeline import Instances, RankTimeline
from traincope.timeline.collectives.instances import closed_collectives
from traincope.timeline.intervals.numbering import UNKNOWN, Numbering
from traincope.timeline.intervals.painting import ABSENT, painted

NOWHERE = ""
"""Place of a call without a recorded interval around it."""
NO_PLACE = "call site unknown"
"""What is shown of it."""
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
    ambiguous_ns: int = 0
    """Part of it that the records cannot split."""

    @property
    def known_wait_ns(self) -> int | None:
        """Wait; None if no stall can be split."""
        return None if self.ambiguous_ns == self.exposed_ns > 0 else self.wait_ns


class Messages(NamedTuple):
    """Messages of one operation on one axis from one place, with elements of one type."""

    axis: str
    operation: str
    place: str
    phase: Phase
    """Phase of the place; Phase.NONE outside phases, and in a span or pipeline action."""
    element: Element
    num_messages: int
    num_bytes: int
    largest_bytes: int
    """The largest message."""
    visits: int
    """Number of times that the training was in the place and called the operation; 0 if the place is unknown."""
    visit_bytes: int
    """Largest sum of bytes over one visit."""
    transfer_ns: int
    """As in `CallSite`, and the three below."""
    wait_ns: int
    exposed_ns: int
    ambiguous_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCalls:
    """Calls of one rank, summed over its counted steps."""

    rank: int
    num_steps: int
    in_blocks: bool
    """True if a block of the model was recorded around any of them."""
    messages: tuple[Messages, ...]

    @property
    def calls(self) -> tuple[CallSite, ...]:
        return all_calls((self,))


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
    sums: dict[_Codes, list[int]] = defaultdict(lambda: [0] * 9)
    for codes, values in _message_sums(rank, places, counted=counted, instances=instances, wire=wire):
        sums[codes][:6] = values
    for codes, values in _exposed_sums(slices, split, places, counted=counted):
        sums[codes][6:] = values
    return RankCalls(
        rank=rank.rank,
        num_steps=int(counted.sum()),
        in_blocks=places.in_blocks,
        messages=tuple(
            Messages(axis, operation, *places.meanings[place], *values)
            for (axis, operation, place), values in sums.items()
            if any(values)
        ),
    )


def all_calls(ranks: Iterable[RankCalls]) -> tuple[CallSite, ...]:
    """Sum the calls over ranks."""
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0] * 4)
    for rank in ranks:
        for sent in rank.messages:
            of = sums[sent[:3]]
            for at, ns in enumerate((sent.transfer_ns, sent.wait_ns, sent.exposed_ns, sent.ambiguous_ns)):
                of[at] += ns
    return tuple(CallSite(*key, *ns) for key, ns in sums.items() if any(ns))


def without_places(operations: Iterable[AxisOperation]) -> tuple[CallSite, ...]:
    """Operations as calls from an unknown place."""
    return tuple(
        CallSite(each.axis, each.operation, NOWHERE, each.transfer_ns, each.wait_ns or 0, each.exposed_ns)
        for each in operations
    )


def all_messages(ranks: Iterable[RankCalls]) -> tuple[Messages, ...]:
    """Sum the messages over ranks; the largest message and visit are those of any rank."""
    known: dict[tuple[object, ...], Messages] = {}
    for rank in ranks:
        for sent in rank.messages:
            before = known.get(sent[:5])
            known[sent[:5]] = sent if before is None else _joined(before, sent)
    return tuple(known.values())


def _joined(first: Messages, second: Messages) -> Messages:
    return first._replace(
        num_messages=first.num_messages + second.num_messages,
        num_bytes=first.num_bytes + second.num_bytes,
        largest_bytes=max(first.largest_bytes, second.largest_bytes),
        visits=first.visits + second.visits,
        visit_bytes=max(first.visit_bytes, second.visit_bytes),
        transfer_ns=first.transfer_ns + second.transfer_ns,
        wait_ns=first.wait_ns + second.wait_ns,
        exposed_ns=first.exposed_ns + second.exposed_ns,
        ambiguous_ns=first.ambiguous_ns + second.ambiguous_ns,
    )


_Codes = tuple[str, str, int]
"""Axis, operation, and position of the place among the rank's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Places of a rank's collectives."""

    meanings: tuple[tuple[str, Phase, Element], ...]
    """Name, phase and elements of each place; the last is NOWHERE."""
    of_part: NDArray[np.int32]
    """Place of each of the rank's parts, as a position in `meanings`."""
    of_instance: NDArray[np.int32]
    """Place of each instance; the last entry is for stalls of unknown instances."""
    visit: Ints
    """Number of the interval in which each part was called, ABSENT without one."""
    in_blocks: bool

    @classmethod
    def of(cls, rank: RankTimeline, instances: Instances) -> "_Places":
        found = [_keys(rank, records, at=at) for at, records in enumerate(rank.threads.values())]
        keys = np.concatenate([key for key, _ in found] or [np.empty(0, np.int64)])
        visit = np.concatenate([number for _, number in found] or [np.empty(0, np.int64)])
        numbering = Numbering.of(keys)
        distinct = numbering.values.tolist()
        place = numbering.number(keys).astype(np.int32)
        of_instance = np.full(len(instances) + 1, len(distinct), dtype=np.int32)
        of_instance[instances.number[instances.parts_of[rank.rank]]] = place
        meanings = [(_place_name(rank, key), _phase(key), Element(key >> ELEMENT_AT)) for key in distinct]
        blocks = any(_kind(key) == Kind.SPAN and _phase(key) is not Phase.NONE for key in distinct)
        nowhere = (NOWHERE, Phase.NONE, Element.UNKNOWN)
        return cls(meanings=(*meanings, nowhere), of_part=place, of_instance=of_instance, visit=visit, in_blocks=blocks)


ELEMENT_AT, KIND_AT, PHASE_AT = 48, 40, 32
"""Position of the lowest bit of each part of a place's key; the name is in the lowest bits."""


def _kind(key: int) -> int:
    return key >> KIND_AT & 0xFF


def _phase(key: int) -> Phase:
    return Phase(key >> PHASE_AT & 0xFF) if _kind(key) != Kind.ACTION else Phase.NONE


def _keys(rank: RankTimeline, records: NDArray[np.void], *, at: int) -> tuple[Ints, Ints]:
    """Return the place of each collective of thread number `at`, and the number of the interval that is its place.

    A place is the type of elements, kind, phase and name in one number.
    """
    called = records[closed_collectives(records)]
    keys, visit = _innermost(rank, records, called["start_ns"])
    visit[visit != ABSENT] = visit[visit != ABSENT] * len(rank.threads) + at
    unplaced = keys == ABSENT
    if unplaced.any() and records is not rank.main:
        keys[unplaced], outer = _innermost(rank, rank.main, called["start_ns"][unplaced])
        main = [other is rank.main for other in rank.threads.values()].index(True)
        visit[unplaced] = np.where(outer == ABSENT, ABSENT, outer * len(rank.threads) + main)
    element = called["flags"].astype(np.int64) >> ELEMENT_SHIFT
    return np.where(keys == ABSENT, 0, keys) | element << ELEMENT_AT, visit


def _innermost(rank: RankTimeline, records: NDArray[np.void], at_ns: Ints) -> tuple[Ints, Ints]:
    """Return the innermost place of the thread at each instant, encoded as in `_keys`, and its record's position."""
    keys, position = np.full((2, len(at_ns)), ABSENT, dtype=np.int64)
    inside = np.flatnonzero(PLACES[records["kind"]] & (records["flags"] & Flag.DEVICE == 0))
    if not len(at_ns) or not len(inside):
        return keys, position
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
    keys[held], position[held] = kind << KIND_AT | phase << PHASE_AT | name, owner
    return keys, position


def _place_name(rank: RankTimeline, key: int) -> str:
    """Return a place's name: `F`, `backward`, `forward layers.3 (Block)`, or the name given to `traincope.span()`."""
    if not _kind(key):
        return NOWHERE
    phase, name = _phase(key), rank.name(key & 0xFFFFFFFF)
    word = phase.name.lower().replace("_", " ")
    if phase is Phase.NONE or phase is Phase.OBJECTS:
        return name
    return word if name in ("", word, phase.name.lower()) else f"{word} {name}"


def _message_sums(
    rank: RankTimeline, places: _Places, *, counted: Bools, instances: Instances, wire: Transfers
) -> Iterator[tuple[_Codes, list[int]]]:
    """Sum in counted steps, by axis, operation and place: the first fields of `Messages` after its element."""
    rank_parts = instances.parts_of[rank.rank]
    known = Numbering.of(np.array([step.number for step in rank.steps], dtype=np.int64)[counted])
    inside = known.number(instances.parts.step[rank_parts].astype(np.int64)) != UNKNOWN
    inside &= ~instances.parts.evaluating[rank_parts]
    axis, operation = instances.parts.axis_code[rank_parts][inside], instances.parts.operation_code[rank_parts][inside]
    num_bytes, wire_ns = instances.parts.num_bytes[rank_parts][inside], wire.ns[instances.number[rank_parts][inside]]
    codes, visit = (axis, operation, places.of_part[inside]), places.visit[inside]
    sent, visited = _numbered(codes)[1], visit != ABSENT
    first, visit_bytes = _by_visit(sent, visit, num_bytes)
    sums = _summed(codes, np.ones_like(wire_ns), num_bytes, first & visited, wire_ns)
    largest, by_visit = (_largest(sent, values) for values in (num_bytes, np.where(visited, visit_bytes, 0)))
    for at, ((on, of, place), (count, total, visits, ns)) in enumerate(sums):
        values = [count, total, largest[at], visits, by_visit[at], ns]
        yield (instances.axes[on], instances.operations[of], place), values


def _exposed_sums(
    slices: ThreadSlices, split: StallSplit, places: _Places, *, counted: Bools
) -> Iterator[tuple[_Codes, list[int]]]:
    """Sum the training thread's stalls in counted steps: the last fields of `Messages` after `transfer_ns`."""
    inside = np.append(counted, False)[slices.step[split.at]]
    place = places.of_instance[split.instance[inside]]
    wait_ns = split.wait_ns[inside]
    codes = split.axis_code[inside], split.operation_code[inside], place
    transfer_ns, known = split.transfer_ns[inside], split.split[inside]
    for (at, of, where), sums in _summed(codes, wait_ns, wait_ns + transfer_ns, np.where(known, 0, transfer_ns)):
        yield (split.axes[at], split.operations[of], where), sums


def _summed(codes: tuple[NDArray[np.integer], ...], *values: Ints) -> Iterator[tuple[list[int], list[int]]]:
    """Yield each combination of codes that occurs, and the sums of its values."""
    numbering, number, sizes = _numbered(codes)
    sums = np.zeros((len(values), len(numbering)), dtype=np.int64)
    for row, value in zip(sums, values, strict=True):
        np.add.at(row, number, value)
    apart = np.unravel_index(numbering.values, sizes)
    yield from zip(np.stack(apart, axis=1).tolist(), sums.T.tolist(), strict=True)


def _largest(number: Ints, values: Ints) -> list[int]:
    """Return the largest of the values with each number."""
    largest = np.zeros(int(number.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(largest, number, values)
    return largest.tolist()


def _by_visit(number: Ints, visit: Ints, num_bytes: Ints) -> tuple[Bools, Ints]:
    """Mark the first message of each number in a visit, and return the bytes of all of these for each message."""
    _, of_visit, _ = _numbered((number, visit + 1))
    first = np.zeros(len(visit), dtype=bool)
    first[np.unique(of_visit, return_index=True)[1]] = True
    sums = np.zeros(int(of_visit.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(sums, of_visit, num_bytes)
    return first, sums[of_visit]


def _numbered(codes: tuple[NDArray[np.integer], ...]) -> tuple[Numbering, Ints, list[int]]:
    """Number the combinations of codes: each one's number, and the sizes by which `unravel_index` takes them apart."""
    sizes = [int(code.max(initial=0)) + 1 for code in codes]
    joined = np.zeros(len(codes[0]), dtype=np.int64)
    for code, size in zip(codes, sizes, strict=True):
        joined = joined * size + code
    numbering = Numbering.of(joined)
    return numbering, numbering.number(joined), sizes
