"""What a window says of the node's latest steps: the gauges."""

from collections.abc import Collection, Iterator

import numpy as np

from traincope import metrics
from traincope.analysis import Analysis
from traincope.events import Kind
from traincope.live.series import Series, series
from traincope.live.window import Window
from traincope.store.rows import Row
from traincope.timeline import RankTimeline
from traincope_exporters.telling import INTERNAL, MOST_LOGGED, axis_of, expected_bubble

Pairs = Iterator[tuple[Series, float]]


def gauges(window: Window, *, restored: tuple[Row, ...], known: Collection[Series]) -> dict[Series, float]:
    """Only what is known; what an earlier window said of the rest still stands."""
    found = dict(_of_rows((*restored, *window.rows)))
    if window.analysis is not None:
        found |= dict(_of_analysis(window.analysis)) | dict(_logged(window.analysis, known=known))
    return found


def _of_rows(rows: tuple[Row, ...]) -> Pairs:
    for row in sorted(rows, key=lambda row: row.step):
        yield series(metrics.LAST_STEP, row.rank), row.step
        if row.many is None:
            yield series(metrics.STEP_DURATION, row.rank), row.wall_ns / 1e9


def _of_analysis(analysis: Analysis) -> Pairs:
    ratios = analysis.utilization.ratios
    shares = ((metrics.MFU, ratios.mfu), (metrics.MFU_PAPER, ratios.mfu_paper), (metrics.HFU, ratios.hfu))
    for metric, share in shares:
        if share is not None:
            yield series(metric), share
    yield from _bubble(analysis)
    for row in analysis.comm:
        if row.bus_bandwidth is not None and axis_of(row.axis) == row.axis:  # else it is of one of several groups
            yield series(metrics.BUS_BANDWIDTH, row.axis, row.operation), row.bus_bandwidth
    for use in analysis.memory:
        yield series(metrics.MEMORY, use.rank, use.measure), use.last_bytes


def _bubble(analysis: Analysis) -> Pairs:
    bubble = analysis.bubble
    if bubble is None:
        return
    for stage in bubble.stages:
        if stage.wall_ns:
            yield series(metrics.BUBBLE, stage.stage), stage.fraction_ratio
            parts = {"schedule": stage.schedule_ns, "imbalance": stage.imbalance_ns, "jitter": stage.jitter_ns}
            for part, ns in parts.items():
                yield series(metrics.BUBBLE_PART, stage.stage, part), ns / stage.wall_ns
    expected = expected_bubble(bubble)
    if expected is not None:
        yield series(metrics.BUBBLE_THEORY), expected


def _logged(analysis: Analysis, *, known: Collection[Series]) -> Pairs:
    """Of each name the last value of the lowest rank that logs it."""
    values: dict[Series, float] = {}
    for rank in sorted(analysis.timeline.ranks, key=lambda rank: rank.rank):
        for name, value in _last_values(rank):
            values.setdefault(series(metrics.LOGGED, name), value)
    shown = {key for key in known if key[0] == metrics.LOGGED.name}
    for key, value in values.items():
        if key in shown or len(shown) < MOST_LOGGED:
            shown.add(key)
            yield key, value


def _last_values(rank: RankTimeline) -> Iterator[tuple[str, float]]:
    records = rank.of_kind(Kind.SCALAR)
    values = np.ascontiguousarray(records["value"]).view(np.float64)
    last = dict(zip(records["name"].tolist(), values.tolist(), strict=True))
    named = ((rank.name(number), value) for number, value in last.items())
    return ((name, value) for name, value in named if INTERNAL not in name)
