"""Communication -> its part of the document."""

from collections.abc import Iterable

from traincope.analysis import AxisOperation, Contention, Uneven
from traincope.report import schema


def operations(rows: Iterable[AxisOperation]) -> list[schema.Operation]:
    """One entry an axis and operation, in the analysis' order."""
    return [
        schema.Operation(
            axis=row.axis,
            op=row.operation,
            count=row.count,
            bytes=row.num_bytes,
            transfer_ns=row.transfer_ns,
            wait_ns=row.wait_ns,
            exposed_ns=row.exposed_ns,
            bus_bandwidth_bytes_per_second=row.bus_bandwidth,
            uneven=None if row.uneven is None else _uneven(row.uneven),
            contention=[_contention(one) for one in row.contention],
        )
        for row in rows
    ]


def _uneven(uneven: Uneven) -> schema.Uneven:
    return schema.Uneven(ranks=list(uneven.ranks), ratio=uneven.ratio, cost_ns=uneven.cost_ns)


def _contention(beside: Contention) -> schema.Contention:
    return schema.Contention(axis=beside.axis, count=beside.count, compared=beside.compared, extra_ns=beside.extra_ns)
