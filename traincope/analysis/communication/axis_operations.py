"""Communication of each mesh axis by operation: count, bytes, time on the wire, wait, exposed time, bandwidth."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from traincope.analysis.attribution.stalls import StallTotal
from traincope.analysis.attribution.transfers import Transfers
from traincope.analysis.communication.contention import Contention, contention
from traincope.analysis.ledger.ledger import Ledger
from traincope.arrays import Bools, Floats, Ints
from traincope.plan.layout.bus import bus_factor
from traincope.timeline import Instances
from traincope.timeline.intervals.numbering import UNKNOWN, Numbering
from traincope.topology import axis_order

ALL_TO_ALL, BARRIER = "all_to_all", "barrier"
MAY_BE_EMPTY = (ALL_TO_ALL, "send_recv")
"""Operations of which some messages of a run may have no bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSize:
    """Messages of an operation that have at most `max_bytes` and more than half of it."""

    max_bytes: int
    """A power of two."""
    count: int
    """Number of ranks' parts."""
    transfer_ns: int
    """On the wire, hidden or not."""
    bus_bandwidth: float | None
    """Bytes per second; None if no transfer is known exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageImbalance:
    """Unequal messages in the all-to-alls of one axis, over all its groups: some experts of a mixture are hot."""

    ranks: tuple[int, ...]
    """The rank that sends most in each group, for groups nearly as unequal as the worst."""
    ratio: float
    """Largest over groups: bytes that this rank sends / mean of its group."""
    cost_ns: int
    """(max - mean bytes) / bandwidth: the longest message's time above an equal one's, over all ranks' parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisOperation:
    """One operation on one axis, summed over ranks and counted steps."""

    axis: str
    operation: str
    count: int
    """Number of ranks' parts: an all-reduce of 4 ranks counts 4."""
    num_bytes: int | None
    """None if the size of some part is unknown: a table of operations has none, a trace not always."""
    transfer_ns: int
    """On the wire, hidden or not, as `transfers` defines it."""
    wait_ns: int | None
    """Exposed wait: stall time of the training thread because peers were late; None if no stall can be split."""
    exposed_ns: int
    """Stall time of the training thread: wait and transfer together."""
    bus_bandwidth: float | None
    """Bytes per second; None if no transfer is known exactly."""
    largest_group: int = 0
    """Number of members of the largest group; 0 if torch does not know them."""
    message_imbalance: MessageImbalance | None = None
    """Only for an all-to-all in which some ranks send more than others."""
    sizes: tuple[MessageSize, ...] = ()
    """The smallest first. Empty messages are in none."""
    contention: tuple[Contention, ...] = ()
    """The other axes that shared the wire with it, and the cost."""

    @property
    def exposed_transfer_ns(self) -> int:
        """Stall time without the waits that are known."""
        return self.exposed_ns - (self.wait_ns or 0)


def communication(
    instances: Instances,
    stall_totals: Mapping[int, tuple[StallTotal, ...]],
    *,
    wire: Transfers,
    ledger: Ledger,
    imported: bool = False,
) -> tuple[AxisOperation, ...]:
    """Sum communication by (axis, operation): axes in table order, the most exposed operation of each first.

    `stall_totals` are the stalls of each rank's training thread in counted steps. Records of an `imported` run
    contain 0 for an unknown size.
    """
    counted = np.flatnonzero(counted_parts(instances, ledger))
    exposed, contentions = _exposed(stall_totals), contention(instances, wire, counted)
    parts = instances.parts
    kinds = parts.axis_code[counted].astype(np.int64) * len(instances.operations) + parts.operation_code[counted]
    rows = []
    for kind in Numbering.of(kinds).values.tolist():
        axis, operation = divmod(kind, len(instances.operations))
        names = instances.axes[axis], instances.operations[operation]
        row = _row(instances, counted[kinds == kind], wire, exposed[names], names=names)
        num_bytes = None if imported and _is_unsized(instances, counted[kinds == kind], names[1]) else row.num_bytes
        rows.append(replace(row, contention=contentions.get(names, ()), num_bytes=num_bytes))
    return tuple(sorted(rows, key=lambda row: (axis_order(row.axis), -row.exposed_ns, row.operation)))


def _is_unsized(instances: Instances, chosen: Ints, operation: str) -> bool:
    """Return whether a size is unknown. Messages may be empty, and a barrier sends none."""
    unknown = instances.parts.num_bytes[chosen] == 0
    return operation != BARRIER and bool(unknown.all() if operation in MAY_BE_EMPTY else unknown.any())


@dataclass(slots=True)
class _Exposed:
    total_ns: int = 0
    wait_ns: int = 0
    ambiguous_ns: int = 0


def _row(
    instances: Instances, chosen: Ints, wire: Transfers, exposed: _Exposed, *, names: tuple[str, str]
) -> AxisOperation:
    axis, operation = names
    return AxisOperation(
        axis=axis,
        operation=operation,
        count=len(chosen),
        num_bytes=int(instances.parts.num_bytes[chosen].sum()),
        transfer_ns=int(wire.ns[instances.number[chosen]].sum()),
        wait_ns=None if exposed.ambiguous_ns == exposed.total_ns > 0 else exposed.wait_ns,
        exposed_ns=exposed.total_ns,
        bus_bandwidth=_bus_bandwidth(instances, chosen, wire, operation),
        largest_group=int(instances.parts.group_size[chosen].max()),
        message_imbalance=_message_imbalance(instances, chosen, operation=operation),
        sizes=tuple(_sizes(instances, chosen, wire, operation)),
    )


def _sizes(instances: Instances, chosen: Ints, wire: Transfers, operation: str) -> Iterator[MessageSize]:
    sent = chosen[instances.parts.num_bytes[chosen] > 0]
    _, powers = np.frexp(instances.parts.num_bytes[sent] - 1)
    for power in Numbering.of(powers.astype(np.int64)).values.tolist():
        selected = sent[powers == power]
        yield MessageSize(
            max_bytes=1 << power,
            count=len(selected),
            transfer_ns=int(wire.ns[instances.number[selected]].sum()),
            bus_bandwidth=_bus_bandwidth(instances, selected, wire, operation),
        )


def _bus_bandwidth(instances: Instances, chosen: Ints, wire: Transfers, operation: str) -> float | None:
    """Compute bytes x bus factor / transfer time, over complete instances whose transfer is known exactly.

    None if these have less than half of the bytes: a rate of tiny messages is not that of the others.
    """
    known = (instances.exact & instances.complete & wire.measured)[instances.number[chosen]]
    exact = chosen[known & (instances.parts.num_bytes[chosen] > 0) & (instances.parts.group_size[chosen] > 1)]
    transfer_ns = instances.transfer_ns[instances.number[exact]].sum()
    if transfer_ns <= 0 or 2 * instances.parts.num_bytes[exact].sum() < instances.parts.num_bytes[chosen].sum():
        return None
    sizes, size = np.unique(instances.parts.group_size[exact], return_inverse=True)
    factors = np.array([bus_factor(operation, ranks) for ranks in sizes.tolist()])
    return float((instances.parts.num_bytes[exact] * factors[size]).sum() / transfer_ns * 1e9)


def counted_parts(instances: Instances, ledger: Ledger) -> Bools:
    """Mark the parts that were issued in a counted step of their rank and outside evaluation."""
    return parts_in_steps(instances, {rank.rank: rank.numbers[rank.counted] for rank in ledger.ranks})


def parts_in_steps(instances: Instances, steps: Mapping[int, Ints]) -> Bools:
    """Mark the parts that were issued outside evaluation in one of these steps. `steps`: rank -> step numbers."""
    inside = np.zeros(len(instances.number), dtype=bool)
    for rank, numbers in steps.items():
        selected = instances.parts_of[rank]
        known = Numbering.of(numbers)
        inside[selected] = known.number(instances.parts.step[selected].astype(np.int64)) != UNKNOWN
    return inside & ~instances.parts.evaluating


def _exposed(stall_totals: Mapping[int, tuple[StallTotal, ...]]) -> dict[tuple[str, str], _Exposed]:
    """Sum the stalls of all ranks: (axis, operation) -> total, wait and what may be either."""
    sums: dict[tuple[str, str], _Exposed] = defaultdict(_Exposed)
    for rank in stall_totals.values():
        for total in rank:
            of = sums[total.axis, total.operation]
            of.total_ns += total.total_ns
            of.wait_ns += total.wait_ns
            of.ambiguous_ns += total.ambiguous_ns
    return sums


def _message_imbalance(instances: Instances, chosen: Ints, *, operation: str) -> MessageImbalance | None:
    """Compute the imbalance of the parts `chosen`, all of one axis and operation; None if all messages are equal.

    Only complete instances count. Instances in which all ranks send the same number of bytes are left out: numbers
    of rows, and rows sent before the router decides on their receivers.
    """
    if operation != ALL_TO_ALL or not len(chosen):
        return None
    local = Numbering.of(instances.number[chosen].astype(np.int64))
    part_instance = local.number(instances.number[chosen].astype(np.int64))
    num_bytes, count = instances.parts.num_bytes[chosen], len(local)
    members = np.bincount(part_instance, minlength=count)
    total = np.bincount(part_instance, weights=num_bytes, minlength=count)
    largest = np.zeros(count)
    np.maximum.at(largest, part_instance, num_bytes)
    size = np.zeros(count, dtype=np.int64)
    size[part_instance] = instances.parts.group_size[chosen]
    uneven = (members == size) & (largest * members > total)
    if not uneven.any():
        return None
    informative = uneven[part_instance]
    ranks, ratio = _hottest(instances, chosen[informative], even_bytes=(total / members)[part_instance[informative]])
    transfer_ns = instances.transfer_ns[local.values[uneven]].sum()
    excess = (largest * members - total)[uneven].sum()
    return MessageImbalance(ranks=ranks, ratio=ratio, cost_ns=round(excess * transfer_ns / largest[uneven].sum()))


def _hottest(instances: Instances, chosen: Ints, *, even_bytes: Floats) -> tuple[tuple[int, ...], float]:
    """Find the rank that sends most in each group. `even_bytes`: each part's bytes if its instance's were equal."""
    rank, channel = instances.parts.rank[chosen], instances.channel[instances.number[chosen]]
    hottest: dict[int, float] = {}
    for group in np.unique(channel).tolist():
        in_group = channel == group
        ranks, number = np.unique(rank[in_group], return_inverse=True)
        sent_bytes = np.bincount(number, weights=instances.parts.num_bytes[chosen[in_group]])
        ratios = sent_bytes / np.bincount(number, weights=even_bytes[in_group])
        hottest[int(ranks[ratios.argmax()])] = float(ratios.max())
    largest = max(hottest.values())
    return tuple(sorted(rank for rank, ratio in hottest.items() if 2 * (ratio - 1) >= largest - 1)), largest
