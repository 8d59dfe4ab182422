"""Transfers that share the wire with another axis': what they take beyond their like that had it to themselves.

A transfer is beside an axis that is on the wire when it begins, on any of its ranks. One that another joins later does
not count as such: long transfers are joined more often than short ones, whatever the wire, so that what they take would
look like contention. Compared are medians, of transfers of one operation, size and link whose time is exactly known;
where none of its like began alone nothing can be compared, and that is said.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.transfers import Transfers, medians
from traincope.timeline import Instances
from traincope.timeline.intervals import Union
from traincope.timeline.numbering import Ints, Numbering

Bools = NDArray[np.bool_]
NOBODY = -1
INSTANT_NS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """Of one axis and operation, beside one other axis. Ranks' parts count each, as in its sums."""

    axis: str
    """The other."""
    count: int
    compared: int
    """Those of which the same transfer also began alone."""
    extra_ns: int | None
    """What these took longer, by the difference of medians; negative where shorter. None where none was compared."""


def contention(
    instances: Instances, wire: Transfers, counted: Ints
) -> Mapping[tuple[str, str], tuple[Contention, ...]]:
    """(axis, operation) -> who was beside it; `counted` are the parts that enter the sums."""
    chosen = np.zeros(len(instances), dtype=bool)
    chosen[instances.number[counted]] = True
    chosen &= _sure(instances, wire)
    beside, alone = _neighbours(instances, wire)
    shared, free = chosen & (beside != NOBODY), chosen & alone
    if not shared.any():
        return {}
    alike = _alike(instances)
    together = alike * (len(instances.axes) + 1) + beside
    longer_ns = _medians(together, wire.ns, shared) - _medians(alike, wire.ns, free)
    known = np.isin(alike, alike[free])
    parts = counted[shared[instances.number[counted]]]
    found: dict[tuple[str, str], tuple[Contention, ...]] = {}
    for names, one in _by_pair(instances, parts, beside, known=known, longer_ns=longer_ns):
        found[names] = (*found.get(names, ()), one)
    return found


def _medians(kind: Ints, ns: Ints, chosen: Bools) -> Ints:
    """For each instance the median of the chosen ones of its kind; where there is none, anything."""
    kinds, middle = medians(kind[chosen], ns[chosen])
    found: Ints = np.append(middle, 0)[np.searchsorted(kinds, kind)]
    return found


def _by_pair(
    instances: Instances, chosen: Ints, beside: Ints, *, known: Bools, longer_ns: Ints
) -> Iterator[tuple[tuple[str, str], Contention]]:
    parts, number = instances.parts, instances.number[chosen]
    columns = (parts.axis_code[chosen], parts.operation_code[chosen], beside[number])
    pairs, pair = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    for place, (axis, operation, other) in enumerate(pairs.tolist()):
        own = number[pair.reshape(-1) == place]
        compared = own[known[own]]
        yield (
            (instances.axes[axis], instances.operations[operation]),
            Contention(
                axis=instances.axes[other],
                count=len(own),
                compared=len(compared),
                extra_ns=int(longer_ns[compared].sum()) if len(compared) else None,
            ),
        )


def _sure(instances: Instances, wire: Transfers) -> Bools:
    """Instances whose time on the wire is exactly known."""
    sure: Bools = instances.exact & instances.complete & wire.measured & (wire.ns > 0)
    return sure


def _alike(instances: Instances) -> Ints:
    """The same number for transfers of one operation and size over one link."""
    parts, number = instances.parts, instances.number
    links = [(channel.group, channel.source, channel.destination) for channel in instances.channels]
    numbers = {link: at for at, link in enumerate(dict.fromkeys(links))}
    link = np.array([numbers[link] for link in links], dtype=np.int64)[instances.channel]
    operation, num_bytes = np.zeros(len(instances), dtype=np.int64), np.zeros(len(instances), dtype=np.int64)
    operation[number], num_bytes[number] = parts.operation_code, parts.num_bytes
    sizes = Numbering.of(num_bytes)
    alike: Ints = (link * len(instances.operations) + operation) * len(sizes) + sizes.number(num_bytes)
    return alike


def _neighbours(instances: Instances, wire: Transfers) -> tuple[Ints, Bools]:
    """Of each instance the axis beside which it began, and whether it can have begun beside none.

    Of several axes the one that then stayed beside it for longest.
    """
    most_ns = np.zeros(len(instances), dtype=np.int64)
    beside, alone = np.full(len(instances), NOBODY), np.ones(len(instances), dtype=bool)
    sure = _sure(instances, wire)
    for own in instances.parts_of.values():
        for axis, rows, shared_ns in _beside(instances, wire, own, sure):
            number = instances.number[rows]
            alone[number] = False
            np.maximum.at(most_ns, number, shared_ns)
            longest = (shared_ns > 0) & (shared_ns == most_ns[number])
            beside[number[longest]] = axis
    return beside, alone


def _beside(instances: Instances, wire: Transfers, own: slice, sure: Bools) -> Iterator[tuple[int, Ints, Ints]]:
    """For each axis the parts of one rank that may have begun beside it, and how long those were that surely did.

    Of some it is only known that they were on the wire between two instants.
    """
    parts = instances.parts
    rows = np.arange(own.start, own.stop)
    exact = sure[instances.number[rows]] & ~parts.bounded[rows]
    end = parts.end_ns[rows]
    start = np.where(exact, end - wire.ns[instances.number[rows]], parts.start_ns[rows])
    mixed = _several_axes(start, end, parts.axis_code[rows])
    rows, exact, start, end = rows[mixed], exact[mixed], start[mixed], end[mixed]
    begun = np.where(exact, start + INSTANT_NS, end)
    code = parts.axis_code[rows]
    for axis in np.unique(code).tolist():
        there, others = code == axis, np.flatnonzero(code != axis)
        possible = Union.of(start[there], end[there])
        others = others[possible.covered_ns(start[others], begun[others]) > 0]
        certain = Union.of(start[there & exact], end[there & exact])
        surely = exact[others] & (certain.covered_ns(start[others], begun[others]) > 0)
        yield axis, rows[others], np.where(surely, certain.covered_ns(start[others], end[others]), 0)


def _several_axes(start_ns: Ints, end_ns: Ints, axis: NDArray[np.int16]) -> Bools:
    """Which of a rank's parts lie among others that they overlap, in a chain, of which some are on another axis."""
    order = np.argsort(start_ns, kind="stable")
    reach = np.maximum.accumulate(end_ns[order])
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = start_ns[order][1:] >= reach[:-1]
    chain = np.cumsum(begins) - 1
    count = int(chain[-1]) + 1 if len(chain) else 0
    least, most = np.full(count, np.iinfo(np.int16).max), np.zeros(count, dtype=np.int64)
    np.minimum.at(least, chain, axis[order])
    np.maximum.at(most, chain, axis[order])
    mixed = np.zeros(len(order), dtype=bool)
    mixed[order] = (least != most)[chain]
    return mixed
