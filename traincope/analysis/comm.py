"""What every mesh axis sent: how often, how much, how long on the wire, how long waiting, how much exposed."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.host import Bools, Ints, Pieces
from traincope.analysis.ledger import Ledger
from traincope.analysis.stalls import StallSplit
from traincope.timeline import Instances
from traincope.topology import axis_order

RING = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Operation -> bus factor x n / (n - 1), n ranks; all others move what they are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisOperation:
    """One operation on one axis, summed over ranks and counted steps."""

    axis: str
    operation: str
    count: int
    """A rank's parts, so an all-reduce of 4 ranks counts 4."""
    num_bytes: int
    transfer_ns: int
    """On the wire, hidden or not."""
    wait_ns: int
    """Time the training thread stood still because peers were late."""
    exposed_ns: int
    """Time the training thread stood still for it, waiting and transfer together."""
    bus_bandwidth: float | None
    """Bytes a second; None where no transfer is exactly known."""


def bus_factor(operation: str, ranks: int) -> float:
    """Bus over algorithm bandwidth (nccl-tests PERFORMANCE.md): all-reduce 2(n-1)/n, gathers (n-1)/n, else 1."""
    return RING[operation] * (ranks - 1) / ranks if operation in RING else 1.0


def communication(
    instances: Instances,
    waits: Mapping[int, tuple[Pieces, StallSplit]],
    *,
    ledger: Ledger,
) -> tuple[AxisOperation, ...]:
    """One entry an (axis, operation), axes in table order, the most exposed operation of each first."""
    counted = _counted(instances, ledger)
    exposed = _exposed(waits, ledger)
    kinds = instances.axis_code * len(instances.operations) + instances.operation_code
    rows = []
    for kind in np.unique(kinds[counted]).tolist():
        axis, operation = divmod(kind, len(instances.operations))
        names = instances.axes[axis], instances.operations[operation]
        rows.append(_row(instances, np.flatnonzero(counted & (kinds == kind)), exposed, *names))
    return tuple(sorted(rows, key=lambda row: (axis_order(row.axis), -row.exposed_ns, row.operation)))


@dataclass(slots=True)
class _Exposed:
    total_ns: int = 0
    wait_ns: int = 0


def _row(
    instances: Instances, chosen: Ints, exposed: dict[tuple[str, str], _Exposed], axis: str, operation: str
) -> AxisOperation:
    return AxisOperation(
        axis=axis,
        operation=operation,
        count=len(chosen),
        num_bytes=int(instances.num_bytes[chosen].sum()),
        transfer_ns=int(instances.transfer_ns[instances.number[chosen]].sum()),
        wait_ns=exposed[axis, operation].wait_ns,
        exposed_ns=exposed[axis, operation].total_ns,
        bus_bandwidth=_bus_bandwidth(instances, chosen, operation),
    )


def _bus_bandwidth(instances: Instances, chosen: Ints, operation: str) -> float | None:
    """Bytes over transfer time, of the whole instances whose transfer is exact, times the bus factor."""
    known = (instances.exact & instances.complete)[instances.number[chosen]]
    exact = chosen[known & (instances.num_bytes[chosen] > 0) & (instances.group_size[chosen] > 1)]
    transfer_ns = instances.transfer_ns[instances.number[exact]].sum()
    if transfer_ns <= 0:
        return None
    sizes, size = np.unique(instances.group_size[exact], return_inverse=True)
    factors = np.array([bus_factor(operation, ranks) for ranks in sizes.tolist()])
    return float((instances.num_bytes[exact] * factors[size]).sum() / transfer_ns * 1e9)


def _counted(instances: Instances, ledger: Ledger) -> Bools:
    """Parts that were issued in a counted step of their rank."""
    most = max((int(rank.numbers.max(initial=0)) for rank in ledger.ranks), default=0) + 1
    pairs = [rank.rank * most + rank.numbers[rank.counted] for rank in ledger.ranks]
    wanted = np.concatenate(pairs) if pairs else np.empty(0, dtype=np.int64)
    in_range = (instances.step >= 0) & (instances.step < most)
    counted: Bools = in_range & np.isin(instances.rank * most + instances.step, wanted)
    return counted


def _exposed(waits: Mapping[int, tuple[Pieces, StallSplit]], ledger: Ledger) -> dict[tuple[str, str], _Exposed]:
    """(axis, operation) -> what the training threads lost to it in counted steps."""
    sums: dict[tuple[str, str], _Exposed] = defaultdict(_Exposed)
    for rank in ledger.ranks:
        pieces, split = waits[rank.rank]
        inside = pieces.stalled & np.append(rank.counted, False)[pieces.step]
        for axis, operation in set(zip(split.axis[inside], split.operation[inside], strict=True)):
            chosen = inside & (split.axis == axis) & (split.operation == operation)
            sums[axis, operation].total_ns += int(pieces.duration_ns[chosen].sum())
            sums[axis, operation].wait_ns += int(split.wait_ns[chosen].sum())
    return sums
