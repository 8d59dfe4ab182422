"""Markers of faults and events on the clock of a run, with bars for their duration."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traincope.analysis import Fault, FaultKind
from traincope.figures.drawing.clock import Clock
from traincope.figures.drawing.labels import label
from traincope.palette import GREY, ORANGE, SEVERE
from traincope.units import duration, numbers

EVENT, NO_END, FOLLOWED, FAULT = "event", "last record, no end recorded", "consequence of an earlier fault", "fault"
COLOURS = {EVENT: GREY, NO_END: GREY, FOLLOWED: ORANGE, FAULT: SEVERE}
SYMBOLS = {EVENT: "line-ns-open", NO_END: "diamond-open", FOLLOWED: "diamond-open", FAULT: "diamond"}
MAX_CHARACTERS = 140
"""Letters of a line of the hover text."""


def fault_markers(faults: Sequence[Fault], rows: Sequence[int], *, on: Clock) -> list[go.Bar | go.Scatter]:
    """A marker per fault in its row, and a bar for its duration; faults are drawn above events."""
    placed = list(zip(faults, rows, strict=True))
    lasting = [(fault, row) for fault, row in placed if fault.lasted_ns]
    traces: list[go.Bar | go.Scatter] = [_spans(lasting, on=on)] if lasting else []
    for name in COLOURS:
        members = [(fault, row) for fault, row in placed if _class(fault) == name]
        if members:
            traces.append(_points(members, name=name, on=on))
    return traces


def clock_axis(faults: Sequence[Fault], *, on: Clock, end_ns: int) -> dict[str, object]:
    """An axis from the run's begin to its end, extended to hold all faults."""
    times = [on.began_ns, end_ns, *(fault.at_ns for fault in faults)]
    space_ns = max(round((max(times) - min(times)) * 0.02), 1_000_000)
    reach = [on.at(min(times) - space_ns), on.at(max(times) + space_ns)]
    return {"title": {"text": f"{on.unit} since the first record"}, "range": reach}


def _class(fault: Fault) -> str:
    if fault.kind == FaultKind.NO_END:
        return NO_END
    return EVENT if fault.is_mark else FOLLOWED if fault.follows else FAULT


def _points(placed: Sequence[tuple[Fault, int]], *, name: str, on: Clock) -> go.Scatter:
    return go.Scatter(
        name=name,
        mode="markers",
        x=[on.at(fault.at_ns) for fault, _ in placed],
        y=[row for _, row in placed],
        marker={
            "color": COLOURS[name],
            "symbol": SYMBOLS[name],
            "size": 12,
            "line": {"width": 2, "color": COLOURS[name]},
        },
        customdata=[_hover(fault) for fault, _ in placed],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _spans(placed: Sequence[tuple[Fault, int]], *, on: Clock) -> go.Bar:
    return go.Bar(
        orientation="h",
        showlegend=False,
        y=[row for _, row in placed],
        base=[on.at(fault.at_ns) for fault, _ in placed],
        x=[on.length(fault.until_ns - fault.at_ns) for fault, _ in placed],
        width=0.35,
        marker={"color": [COLOURS[_class(fault)] for fault, _ in placed], "opacity": 0.45},
        customdata=[_hover(fault) for fault, _ in placed],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _hover(fault: Fault) -> str:
    ranks = numbers(fault.ranks, "rank") or "all ranks"
    step = fault.step if fault.training_step is None else fault.training_step
    when = "" if step is None else f", step {step}"
    lasted = f", {duration(fault.lasted_ns)}" if fault.lasted_ns else ""
    lines = [fault.what, *filter(None, [fault.evidence])]
    return "<br>".join([f"{ranks}{when}{lasted}", *(label(line, max_length=MAX_CHARACTERS) for line in lines)])
