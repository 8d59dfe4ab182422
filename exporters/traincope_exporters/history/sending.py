"""Series of collectives: how long, how much, on the wire and waiting, by axis and operation."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.host import cut
from traincope.analysis.stalls import split_stalls
from traincope.analysis.transfers import transfers
from traincope.metrics import Metric
from traincope_exporters.history.finished import NS, Finished, Rank
from traincope_exporters.history.series import Ints, Series, counter, gauge, histogram
from traincope_exporters.telling import axis_of

Made = Iterator[Series]


def durations(run: Finished, metric: Metric) -> Made:
    """Of those whose end was seen when it came."""
    for labels, parts, ends in _by_operation(run, metric):
        seen = ~run.instances.parts.bounded[parts]
        if seen.any():
            lengths = run.instances.parts.duration_ns[parts][seen]
            yield histogram(metric, labels, ends[seen], lengths, begin_ns=run.begin_ns, unit=NS)


def sizes(run: Finished, metric: Metric) -> Made:
    for labels, parts, ends in _by_operation(run, metric):
        added = run.instances.parts.num_bytes[parts]
        yield counter(metric, labels, ends, added, begin_ns=run.begin_ns, unit=1)


def on_the_wire(run: Finished, metric: Metric) -> Made:
    wire = transfers(run.analysis.timeline, run.instances)
    for labels, parts, ends in _by_operation(run, metric):
        added = wire.ns[run.instances.number[parts]]
        yield counter(metric, labels, ends, added, begin_ns=run.begin_ns, unit=NS)


def waits(run: Finished, metric: Metric) -> Made:
    """What training threads stood still for, until the last rank joined."""
    for labels, ranks in run.groups(metric.labels):
        told: dict[tuple[str, str], list[tuple[Ints, Ints]]] = {}
        for rank in ranks:
            for names, ends, wait_ns in _waits(run, rank):
                told.setdefault(names, []).append((ends, wait_ns))
        for names, parts in sorted(told.items()):
            ends, added = (np.concatenate(column) for column in zip(*parts, strict=True))
            yield counter(metric, (*labels, *names), ends, added, begin_ns=run.begin_ns, unit=NS)


def _waits(run: Finished, rank: Rank) -> Iterator[tuple[tuple[str, str], Ints, Ints]]:
    """(Axis, operation), when its steps ended, and the waiting in them."""
    pieces = cut(rank.timeline, window_ends=np.empty(0, dtype=np.int64))
    split = split_stalls(rank.timeline, pieces, instances=run.instances)
    step = pieces.step[split.at]
    inside = np.append(rank.ledger.counted, False)[step]
    kinds = split.axis_code * len(split.operations) + split.operation_code
    for kind in np.unique(kinds[inside]).tolist():
        chosen = inside & (kinds == kind)
        axis, operation = divmod(kind, len(split.operations))
        yield (
            (axis_of(split.axes[axis]), split.operations[operation]),
            rank.ends_ns[step[chosen]],
            split.wait_ns[chosen],
        )


def bus_bandwidths(run: Finished, metric: Metric) -> Made:
    """Known of the run as a whole."""
    speeds = {(row.axis, row.operation): row.bus_bandwidth for row in run.analysis.comm}
    for labels, _, ends in _by_operation(run, metric):
        speed = speeds.get((labels[-2], labels[-1]))
        if speed is not None:
            times = np.unique(ends)
            yield gauge(metric, labels, times, np.full(len(times), speed))


def _by_operation(run: Finished, metric: Metric) -> Iterator[tuple[tuple[str, ...], NDArray[np.intp], Ints]]:
    """Labels, the parts of ranks that share them, and when the step that each part was in had ended."""
    instances = run.instances
    kinds = instances.parts.axis_code.astype(np.int64) * len(instances.operations) + instances.parts.operation_code
    for labels, ranks in run.groups(metric.labels):
        parts, ends = _counted(run, ranks)
        names: dict[tuple[str, str], list[int]] = {}
        for kind in np.unique(kinds[parts]).tolist():
            axis, operation = divmod(kind, len(instances.operations))
            names.setdefault((axis_of(instances.axes[axis]), instances.operations[operation]), []).append(kind)
        for name, alike in names.items():
            own = np.isin(kinds[parts], alike)
            yield (*labels, *name), parts[own], ends[own]


def _counted(run: Finished, ranks: list[Rank]) -> tuple[NDArray[np.intp], Ints]:
    """Parts that were issued in a counted step, and not within an evaluation."""
    parts, ends = [np.empty(0, dtype=np.intp)], [np.empty(0, dtype=np.int64)]
    for rank in ranks:
        own = run.instances.parts_of[rank.number]
        there, ended = rank.ends_of(run.instances.parts.step[own].astype(np.int64))
        kept = ~run.instances.parts.evaluating[own][there]
        parts.append(there[kept] + own.start)
        ends.append(ended[kept])
    return np.concatenate(parts), np.concatenate(ends)
