"""What happened at an instant, or for a while, as marks on the clock of a run."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traincope.analysis import Fault
from traincope.figures.clock import Clock
from traincope.figures.labels import label
from traincope.palette import GREY, ORANGE, SEVERE
from traincope.units import duration, numbers

MARK, FOLLOWED, FAULT = "mark", "came after another's end", "fault"
COLOURS = {MARK: GREY, FOLLOWED: ORANGE, FAULT: SEVERE}
SYMBOLS = {MARK: "line-ns-open", FOLLOWED: "diamond-open", FAULT: "diamond"}
LONGEST = 140
"""Letters of what is said of one."""


def happenings(faults: Sequence[Fault], rows: Sequence[int], *, on: Clock) -> list[go.Bar | go.Scatter]:
    """One mark each, in its row, and a bar where it lasted; Faults come to lie above marks."""
    placed = list(zip(faults, rows, strict=True))
    lasting = [(fault, row) for fault, row in placed if fault.lasted_ns]
    traces: list[go.Bar | go.Scatter] = [_spans(lasting, on=on)] if lasting else []
    for name in COLOURS:
        own = [(fault, row) for fault, row in placed if _class(fault) == name]
        if own:
            traces.append(_points(own, name=name, on=on))
    return traces


def clock_axis(faults: Sequence[Fault], *, on: Clock, end_ns: int) -> dict[str, object]:
    """From the run's begin to its end, a little beyond, and wide enough for all of them."""
    times = [on.began_ns, end_ns, *(fault.at_ns for fault in faults)]
    space_ns = max(round((max(times) - min(times)) * 0.02), 1_000_000)
    reach = [on.at(min(times) - space_ns), on.at(max(times) + space_ns)]
    return {"title": {"text": f"{on.unit} since the run began"}, "range": reach}


def _class(fault: Fault) -> str:
    return MARK if fault.is_mark else FOLLOWED if fault.follows else FAULT


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
        customdata=[_told(fault) for fault, _ in placed],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _spans(placed: Sequence[tuple[Fault, int]], *, on: Clock) -> go.Bar:
    return go.Bar(
        orientation="h",
        showlegend=False,
        y=[row for _, row in placed],
        base=[on.at(fault.at_ns) for fault, _ in placed],
        x=[on.length(fault.lasted_ns or 0) for fault, _ in placed],
        width=0.35,
        marker={"color": [COLOURS[_class(fault)] for fault, _ in placed], "opacity": 0.45},
        customdata=[_told(fault) for fault, _ in placed],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _told(fault: Fault) -> str:
    who = numbers(fault.ranks, "rank") or "all ranks"
    when = "" if fault.step is None else f", step {fault.step}"
    lasted = f", {duration(fault.lasted_ns)}" if fault.lasted_ns else ""
    said = [fault.what, *filter(None, [fault.evidence])]
    return "<br>".join([f"{who}{when}{lasted}", *(label(one, most=LONGEST) for one in said)])
