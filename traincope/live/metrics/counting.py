"""Points of a window, and the increments they give the counters of a node."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincope.analysis import Analysis
from traincope.analysis.efficiency.work import ON
from traincope.analysis.faults.anomalies.hardware import xids
from traincope.analysis.faults.faults import FaultKind
from traincope.live.metrics.series import SeriesKey, series_key
from traincope.live.window import Window
from traincope.metrics import catalogue
from traincope.metrics.labels import counted_faults
from traincope.metrics.metric import Type
from traincope.metrics.values import NODE_METRICS, Node, Points, RankSteps, limit_modules, row_points
from traincope.store.side_tables.rows import Row

LEVEL_2_PROBE = "modules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Increment of a counter in one window; in ns if the metric is in seconds."""

    total: float
    highest: float
    """The largest partial sum, at least 0. Signed terms may fall."""


def window_points(window: Window, *, restored: Sequence[Row]) -> list[Points]:
    """Points of the window's rows and analysis. `restored`: rows of an earlier agent."""
    excluded = () if window.warm_up is None else (window.warm_up,)
    points = list(row_points((*restored, *window.rows), excluded=excluded))
    if window.analysis is None:
        return points
    node = Node(analysis=window.analysis, ranks=tuple(_rank_steps(window, window.analysis)))
    if node.ranks:
        points += [series_points for compute in dict.fromkeys(NODE_METRICS.values()) for series_points in compute(node)]
    detailed = {rank.rank for rank in window.ranks if rank.info.probes.get(LEVEL_2_PROBE) == ON}
    return [
        series_points
        for series_points in points
        if series_points.metric.level < 2 or series_points.labels[0] in detailed
    ]


def _rank_steps(window: Window, analysis: Analysis) -> Iterator[RankSteps]:
    ledgers = {rank.rank: rank for rank in analysis.ledger.ranks}
    for rank, measured in zip(analysis.timeline.ranks, analysis.context.measured.ranks, strict=True):
        new = {row.step for row in window.rows if row.rank == rank.rank}
        if new:
            yield RankSteps.of(rank, ledgers[rank.rank], measured=measured, new=new)


def counter_gains(window: Window, points: Sequence[Points], *, known: Collection[SeriesKey]) -> dict[SeriesKey, Gain]:
    """Increment of each counter in this window. `known`: counters of earlier windows."""
    gains: dict[SeriesKey, list[Points]] = {}
    for series_points in _limit_modules(points, known=known):
        if series_points.metric.type is Type.COUNTER:
            gains.setdefault(series_key(series_points.metric, *series_points.labels), []).append(series_points)
    sums = {key: _gain(parts) for key, parts in gains.items()}
    for key, value in (*_fault_gains(window), *_straggler_gains(window.analysis)):
        before = sums[key].total if key in sums else 0
        sums[key] = Gain(total=before + value, highest=before + value)
    return sums


def _gain(parts: Sequence[Points]) -> Gain:
    times = np.concatenate([series_points.times_ns for series_points in parts])
    sums = np.cumsum(
        np.concatenate([series_points.values for series_points in parts])[np.argsort(times, kind="stable")]
    )
    total = sums[-1].item() if len(sums) else 0
    return Gain(total=total, highest=sums.max(initial=0).item())


def _limit_modules(points: Sequence[Points], *, known: Collection[SeriesKey]) -> Iterator[Points]:
    shown: dict[object, set[str]] = {}
    for name, labels in known:
        if name == catalogue.MODULE_TIME.name:
            shown.setdefault(labels[0], set()).add(labels[1])
    for series_points in points:
        if series_points.metric is catalogue.MODULE_TIME:
            names = shown.setdefault(str(series_points.labels[0]), set())
            series_points = limit_modules(series_points, shown=names)
            names.add(str(series_points.labels[1]))
        yield series_points


def _fault_gains(window: Window) -> Iterator[tuple[SeriesKey, int]]:
    faults = (*window.earlier, *window.faults)
    for rank, kind, _ in counted_faults(faults):
        yield series_key(catalogue.FAULTS, rank, kind), 1
    reported = {(fault.at_ns, fault.ranks) for fault in faults if fault.kind == FaultKind.XID}
    if window.analysis is not None and reported:
        for xid in xids(window.analysis.timeline):
            if (xid.at_ns, (xid.rank,)) in reported:
                yield series_key(catalogue.GPU_XID, xid.rank, xid.gpu, xid.number), 1


def _straggler_gains(analysis: Analysis | None) -> Iterator[tuple[SeriesKey, int]]:
    for rank in () if analysis is None else analysis.stragglers.ranks:
        yield series_key(catalogue.STRAGGLER_WAIT, rank.rank), rank.straggler_wait_ns


def highest_sums(
    sums: Mapping[SeriesKey, float], highest: Mapping[SeriesKey, float], gains: Mapping[SeriesKey, Gain]
) -> dict[SeriesKey, float]:
    """Highest value of each counter so far. It does not depend on how often the agent looks."""
    return {
        **highest,
        **{key: max(highest.get(key, 0), sums.get(key, 0) + gain.highest) for key, gain in gains.items()},
    }
