"""Bytes, waits, transfer times, durations and bandwidth of collectives, by axis and operation or reason."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints
from traincope.metrics import catalogue
from traincope.metrics.labels import axis_of
from traincope.metrics.values.points import Node, Points


def collectives(node: Node) -> Iterator[Points]:
    """Bytes (if recorded), transfer times, durations and bandwidth by axis and operation, outside evaluations.

    A duration is known if the end was seen when it came. The bandwidth is that of all collectives of the analysis.
    """
    context = node.analysis.context
    parts, speeds = context.instances.parts, {(row.axis, row.operation): row for row in node.analysis.comm}
    for names, chosen, ends in _by_operation(node):
        columns = {
            catalogue.COLLECTIVE_BYTES: parts.num_bytes[chosen],
            catalogue.COLLECTIVE_TRANSFER: context.transfers.ns[context.instances.number[chosen]],
        }
        if context.timeline.run.info.imported and not parts.num_bytes[chosen].all():
            del columns[catalogue.COLLECTIVE_BYTES]  # a table of operations states no sizes, a trace not always
        for metric, values in columns.items():
            yield Points(metric=metric, labels=names, times_ns=ends, values=values)
        exact = ~parts.bounded[chosen]
        if exact.any():
            lengths = parts.duration_ns[chosen][exact]
            yield Points(metric=catalogue.COLLECTIVE_TIMES, labels=names, times_ns=ends[exact], values=lengths)
        speed = speeds[names].bus_bandwidth if names in speeds else None
        if speed is not None:
            times = np.unique(ends)
            yield Points(
                metric=catalogue.BUS_BANDWIDTH, labels=names, times_ns=times, values=np.full(len(times), speed)
            )


def collective_waits(node: Node) -> Iterator[Points]:
    """Time in counted steps that training threads waited until the last rank joined, by axis and operation.

    An operation without any wait has a series too, which stays at 0.
    """
    nothing = np.empty(0, dtype=np.int64)
    for names, _, _ in _by_operation(node):
        yield Points(metric=catalogue.COLLECTIVE_WAIT, labels=names, times_ns=nothing, values=nothing)
    for rank in node.ranks:
        slices, split = node.analysis.context.slices(rank.measured)
        step = slices.step[split.at]
        inside = np.append(rank.counted, False)[step]
        kinds = split.axis_code * len(split.operations) + split.operation_code
        for kind in np.unique(kinds[inside]).tolist():
            chosen = inside & (kinds == kind)
            axis, operation = divmod(kind, len(split.operations))
            yield Points(
                metric=catalogue.COLLECTIVE_WAIT,
                labels=(axis_of(split.axes[axis]), split.operations[operation]),
                times_ns=rank.ends_ns[step[chosen]],
                values=split.wait_ns[chosen],
            )


def ambiguous_waits(node: Node) -> Iterator[Points]:
    """Transfer in counted steps that may contain wait, by axis and reason."""
    for rank in node.ranks:
        for (axis, reason), values in rank.ledger.ambiguous_waits.items():
            yield Points(
                metric=catalogue.AMBIGUOUS_WAIT,
                labels=(axis_of(axis), str(reason)),
                times_ns=rank.ends_ns[rank.counted],
                values=values[rank.counted],
            )


def _by_operation(node: Node) -> Iterator[tuple[tuple[str, str], NDArray[np.intp], Ints]]:
    """(Axis, operation), its parts in counted steps, and the end of each part's step in ns."""
    instances = node.analysis.context.instances
    kinds = instances.parts.axis_code.astype(np.int64) * len(instances.operations) + instances.parts.operation_code
    parts, ends = _counted_parts(node)
    names: dict[tuple[str, str], list[int]] = {}
    for kind in np.unique(kinds[parts]).tolist():
        axis, operation = divmod(kind, len(instances.operations))
        names.setdefault((axis_of(instances.axes[axis]), instances.operations[operation]), []).append(kind)
    for name, codes in names.items():
        chosen = np.isin(kinds[parts], codes)
        yield name, parts[chosen], ends[chosen]


def _counted_parts(node: Node) -> tuple[NDArray[np.intp], Ints]:
    """Parts that were issued in a counted step and outside evaluations, and the end of their step in ns."""
    instances = node.analysis.context.instances
    parts, ends = [np.empty(0, dtype=np.intp)], [np.empty(0, dtype=np.int64)]
    for rank in node.ranks:
        of_rank = instances.parts_of[rank.number]
        at, ended = rank.ends_of(instances.parts.step[of_rank].astype(np.int64))
        kept = ~instances.parts.evaluating[of_rank][at]
        parts.append(at[kept] + of_rank.start)
        ends.append(ended[kept])
    return np.concatenate(parts), np.concatenate(ends)
