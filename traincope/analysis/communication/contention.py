"""Contention: the extra time of transfers that share the wire with another axis.

A transfer shares the wire with an axis that is on the wire when the transfer begins, on any of its ranks. A transfer
that another one joins later does not count: on any wire, others join long transfers more often than short ones, so
that their length would look like contention. The comparison is between medians of transfers with the same operation,
size and link whose time is known exactly. A transfer of which no similar one began alone is not compared; `compared`
counts the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.transfers import Transfers
from traincope.arrays import Bools, Ints
from traincope.timeline import Instances
from traincope.timeline.intervals.medians import medians
from traincope.timeline.intervals.numbering import Numbering
from traincope.timeline.intervals.painting import ABSENT
from traincope.timeline.intervals.union import Union

INSTANT_NS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """Contention of one axis and operation with one other axis. Each rank's part of a collective counts."""

    axis: str
    """The other axis."""
    count: int
    compared: int
    """Parts of which a similar transfer also began alone."""
    extra_ns: int | None
    """Difference of medians, summed over compared parts; negative if they were shorter. None without such parts."""


def contention(
    instances: Instances, wire: Transfers, counted: Ints
) -> Mapping[tuple[str, str], tuple[Contention, ...]]:
    """Compute contention by (axis, operation). `counted` are the parts that enter the sums."""
    chosen = np.zeros(len(instances), dtype=bool)
    chosen[instances.number[counted]] = True
    chosen &= _precise(instances, wire)
    other_axis, alone = _other_axes(instances, wire)
    shared, free = chosen & (other_axis != ABSENT), chosen & alone
    if not shared.any():
        return {}
    similar = _similar(instances)
    shared_kind = similar * (len(instances.axes) + 1) + other_axis
    longer_ns = _medians(shared_kind, wire.ns, shared) - _medians(similar, wire.ns, free)
    known = np.isin(similar, similar[free])
    parts = counted[shared[instances.number[counted]]]
    result: dict[tuple[str, str], tuple[Contention, ...]] = {}
    for names, entry in _by_pair(instances, parts, other_axis, known=known, longer_ns=longer_ns):
        result[names] = (*result.get(names, ()), entry)
    return result


def _medians(kind: Ints, ns: Ints, chosen: Bools) -> Ints:
    """Return, for each instance, the median of the chosen ones of its kind; arbitrary if there are none."""
    kinds, middle = medians(kind[chosen], ns[chosen])
    result: Ints = np.append(middle, 0)[np.searchsorted(kinds, kind)]
    return result


def _by_pair(
    instances: Instances, chosen: Ints, other_axis: Ints, *, known: Bools, longer_ns: Ints
) -> Iterator[tuple[tuple[str, str], Contention]]:
    parts, number = instances.parts, instances.number[chosen]
    num_axes, num_operations = len(instances.axes), len(instances.operations)
    operation_of = parts.axis_code[chosen].astype(np.int64) * num_operations + parts.operation_code[chosen]
    pairs = Numbering.of(operation_of * num_axes + other_axis[number])
    pair = pairs.number(operation_of * num_axes + other_axis[number])
    for place, code in enumerate(pairs.values.tolist()):
        rest, other = divmod(code, num_axes)
        axis, operation = divmod(rest, num_operations)
        selected = number[pair == place]
        compared = selected[known[selected]]
        yield (
            (instances.axes[axis], instances.operations[operation]),
            Contention(
                axis=instances.axes[other],
                count=len(selected),
                compared=len(compared),
                extra_ns=int(longer_ns[compared].sum()) if len(compared) else None,
            ),
        )


def _precise(instances: Instances, wire: Transfers) -> Bools:
    """Mark the instances whose time on the wire is known exactly."""
    precise: Bools = instances.exact & instances.complete & wire.measured & (wire.ns > 0)
    return precise


def _similar(instances: Instances) -> Ints:
    """Number the transfers so that those of one operation, size and link have the same number."""
    parts, number = instances.parts, instances.number
    links = [(channel.group, channel.source, channel.destination) for channel in instances.channels]
    numbers = {link: at for at, link in enumerate(dict.fromkeys(links))}
    link = np.array([numbers[link] for link in links], dtype=np.int64)[instances.channel]
    operation, num_bytes = np.zeros(len(instances), dtype=np.int64), np.zeros(len(instances), dtype=np.int64)
    operation[number], num_bytes[number] = parts.operation_code, parts.num_bytes
    sizes = Numbering.of(num_bytes)
    similar: Ints = (link * len(instances.operations) + operation) * len(sizes) + sizes.number(num_bytes)
    return similar


def _other_axes(instances: Instances, wire: Transfers) -> tuple[Ints, Bools]:
    """Find the other axis on the wire when each instance began, and whether it can have begun alone.

    If there are several axes, it is the one that then overlaps the instance for longest.
    """
    max_ns = np.zeros(len(instances), dtype=np.int64)
    other_axis, alone = np.full(len(instances), ABSENT), np.ones(len(instances), dtype=bool)
    precise = _precise(instances, wire)
    for selected in instances.parts_of.values():
        for axis, rows, shared_ns in _overlaps(instances, wire, selected, precise):
            number = instances.number[rows]
            alone[number] = False
            np.maximum.at(max_ns, number, shared_ns)
            longest = (shared_ns > 0) & (shared_ns == max_ns[number])
            other_axis[number[longest]] = axis
    return other_axis, alone


def _overlaps(
    instances: Instances, wire: Transfers, selected: slice, precise: Bools
) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield, for each axis, the parts of one rank that may have begun during its transfers, and their certain overlap.

    The overlap is 0 for parts of which only two bounding instants are known.
    """
    parts = instances.parts
    rows = np.arange(selected.start, selected.stop)
    exact = precise[instances.number[rows]] & ~parts.bounded[rows]
    end = parts.end_ns[rows]
    start = np.where(exact, end - wire.ns[instances.number[rows]], parts.start_ns[rows])
    mixed = _several_axes(start, end, parts.axis_code[rows])
    rows, exact, start, end = rows[mixed], exact[mixed], start[mixed], end[mixed]
    begun = np.where(exact, start + INSTANT_NS, end)
    code = parts.axis_code[rows]
    for axis in np.unique(code).tolist():
        on_axis, others = code == axis, np.flatnonzero(code != axis)
        possible = Union.of(start[on_axis], end[on_axis])
        others = others[possible.covered_ns(start[others], begun[others]) > 0]
        certain = Union.of(start[on_axis & exact], end[on_axis & exact])
        certainly = exact[others] & (certain.covered_ns(start[others], begun[others]) > 0)
        yield axis, rows[others], np.where(certainly, certain.covered_ns(start[others], end[others]), 0)


def _several_axes(start_ns: Ints, end_ns: Ints, axis: NDArray[np.int16]) -> Bools:
    """Mark a rank's parts in chains of overlapping parts that contain more than one axis."""
    order = np.argsort(start_ns, kind="stable")
    reach = np.maximum.accumulate(end_ns[order])
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = start_ns[order][1:] >= reach[:-1]
    chain = np.cumsum(begins) - 1
    count = int(chain[-1]) + 1 if len(chain) else 0
    first_axis, last_axis = np.full(count, np.iinfo(np.int16).max), np.zeros(count, dtype=np.int64)
    axis_of = axis[order].astype(np.int64)  # ten times faster if types are equal
    np.minimum.at(first_axis, chain, axis_of)
    np.maximum.at(last_axis, chain, axis_of)
    mixed = np.zeros(len(order), dtype=bool)
    mixed[order] = (first_axis != last_axis)[chain]
    return mixed
