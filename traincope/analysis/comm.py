"""What every mesh axis sent: how often, how much, how long on the wire, how long waiting, how much exposed."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from traincope.analysis.contention import Contention, contention
from traincope.analysis.host import Bools, Ints
from traincope.analysis.ledger import Ledger
from traincope.analysis.stalls import Standstill
from traincope.analysis.transfers import Transfers
from traincope.analysis.uneven import Uneven, unevenness
from traincope.plan.bus import bus_factor
from traincope.timeline import Instances
from traincope.timeline.numbering import UNKNOWN, Numbering
from traincope.topology import axis_order


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSize:
    """Those of an operation's messages that are no larger than this, and larger than half of it."""

    most_bytes: int
    """A power of two."""
    count: int
    """A rank's parts."""
    transfer_ns: int
    """On the wire, hidden or not."""
    bus_bandwidth: float | None
    """Bytes a second; None where no transfer is exactly known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisOperation:
    """One operation on one axis, summed over ranks and counted steps."""

    axis: str
    operation: str
    count: int
    """A rank's parts, so an all-reduce of 4 ranks counts 4."""
    num_bytes: int
    transfer_ns: int
    """On the wire, hidden or not, as `transfers` defines it."""
    wait_ns: int
    """Time the training thread stood still because peers were late."""
    exposed_ns: int
    """Time the training thread stood still for it, waiting and transfer together."""
    bus_bandwidth: float | None
    """Bytes a second; None where no transfer is exactly known."""
    uneven: Uneven | None = None
    """Of an all-to-all in which some ranks send more than others."""
    sizes: tuple[MessageSize, ...] = ()
    """The smallest first; empty messages are in none."""
    contention: tuple[Contention, ...] = ()
    """Beside which other axes it was on the wire, and what that cost."""


def communication(
    instances: Instances,
    stood_still: Mapping[int, tuple[Standstill, ...]],
    *,
    wire: Transfers,
    ledger: Ledger,
) -> tuple[AxisOperation, ...]:
    """One entry an (axis, operation), axes in table order, the most exposed operation of each first.

    `stood_still` is what each rank's training thread lost in counted steps.
    """
    counted = np.flatnonzero(_counted(instances, ledger))
    exposed, beside = _exposed(stood_still), contention(instances, wire, counted)
    parts = instances.parts
    kinds = parts.axis_code[counted].astype(np.int64) * len(instances.operations) + parts.operation_code[counted]
    rows = []
    for kind in Numbering.of(kinds).values.tolist():
        axis, operation = divmod(kind, len(instances.operations))
        names = instances.axes[axis], instances.operations[operation]
        row = _row(instances, counted[kinds == kind], wire, exposed[names], names=names)
        rows.append(replace(row, contention=beside.get(names, ())))
    return tuple(sorted(rows, key=lambda row: (axis_order(row.axis), -row.exposed_ns, row.operation)))


@dataclass(slots=True)
class _Exposed:
    total_ns: int = 0
    wait_ns: int = 0


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
        wait_ns=exposed.wait_ns,
        exposed_ns=exposed.total_ns,
        bus_bandwidth=_bus_bandwidth(instances, chosen, wire, operation),
        uneven=unevenness(instances, chosen, operation=operation),
        sizes=tuple(_sizes(instances, chosen, wire, operation)),
    )


def _sizes(instances: Instances, chosen: Ints, wire: Transfers, operation: str) -> Iterator[MessageSize]:
    sent = chosen[instances.parts.num_bytes[chosen] > 0]
    _, powers = np.frexp(instances.parts.num_bytes[sent] - 1)
    for power in Numbering.of(powers.astype(np.int64)).values.tolist():
        own = sent[powers == power]
        yield MessageSize(
            most_bytes=1 << power,
            count=len(own),
            transfer_ns=int(wire.ns[instances.number[own]].sum()),
            bus_bandwidth=_bus_bandwidth(instances, own, wire, operation),
        )


def _bus_bandwidth(instances: Instances, chosen: Ints, wire: Transfers, operation: str) -> float | None:
    """Bytes over transfer time, of the whole instances whose own transfer is exactly known, times the bus factor."""
    known = (instances.exact & instances.complete & wire.measured)[instances.number[chosen]]
    exact = chosen[known & (instances.parts.num_bytes[chosen] > 0) & (instances.parts.group_size[chosen] > 1)]
    transfer_ns = instances.transfer_ns[instances.number[exact]].sum()
    if transfer_ns <= 0:
        return None
    sizes, size = np.unique(instances.parts.group_size[exact], return_inverse=True)
    factors = np.array([bus_factor(operation, ranks) for ranks in sizes.tolist()])
    return float((instances.parts.num_bytes[exact] * factors[size]).sum() / transfer_ns * 1e9)


def _counted(instances: Instances, ledger: Ledger) -> Bools:
    """Parts that were issued in a counted step of their rank, and not within an evaluation."""
    counted = np.zeros(len(instances.number), dtype=bool)
    for rank in ledger.ranks:
        own = instances.parts_of[rank.rank]
        known = Numbering.of(rank.numbers[rank.counted])
        counted[own] = known.number(instances.parts.step[own].astype(np.int64)) != UNKNOWN
    return counted & ~instances.parts.evaluating


def _exposed(stood_still: Mapping[int, tuple[Standstill, ...]]) -> dict[tuple[str, str], _Exposed]:
    """(axis, operation) -> what the training threads lost to it."""
    sums: dict[tuple[str, str], _Exposed] = defaultdict(_Exposed)
    for rank in stood_still.values():
        for one in rank:
            sums[one.axis, one.operation].total_ns += one.total_ns
            sums[one.axis, one.operation].wait_ns += one.wait_ns
    return sums
