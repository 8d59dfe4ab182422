"""Waits of jobs for each other: a bar per waiting and awaited job, divided by what the awaited job did meanwhile."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traincope.analysis.communication.workflow import JobWait
from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.figures.drawing.labels import label
from traincope.figures.run.job_ledgers import MIN_RATIO
from traincope.palette import GREY, PURPLE, SKY_BLUE, shade, tint
from traincope.units import share

WORKED, WAITED, REST, UNKNOWN = (
    "the awaited job works",
    "the awaited job waits itself",
    "it does neither",
    "it has no records of that time here",
)
COLOURS = {WORKED: SKY_BLUE, WAITED: shade(PURPLE, 0.3), REST: GREY, UNKNOWN: tint(GREY, 0.6)}
MAX_NAME = 32
SHARE = "share of the waiting job's step time"


def job_waits(waits: Sequence[JobWait]) -> go.Figure:
    """Shares of the waiting job's step time, one row per wait, in the given order."""
    parts = [_parts(wait) for wait in waits]
    names = [
        f"{label(wait.waiting, max_length=MAX_NAME)} for {label(wait.awaited, max_length=MAX_NAME)}" for wait in waits
    ]
    traces = [
        go.Bar(
            name=did,
            orientation="h",
            y=list(range(len(waits))),
            x=[each.get(did) for each in parts],
            marker={"color": COLOURS[did]},
            customdata=[[name, share(each.get(did))] for name, each in zip(names, parts, strict=True)],
            hovertemplate="%{customdata[0]}<br>%{fullData.name}: %{customdata[1]} of step time<extra></extra>",
        )
        for did in COLOURS
        if any(each.get(did, 0.0) > MIN_RATIO for each in parts)
    ]
    return canvas(
        traces,
        height=height_of(len(waits)),
        barmode="stack",
        bargap=0.25,
        xaxis={"tickformat": ".0%", "range": [0, 1], "ticklabeloverflow": "allow", "title": {"text": SHARE}},
        yaxis=named_rows(names),
    ).update_layout(legend_traceorder="normal")


def _parts(wait: JobWait) -> dict[str, float]:
    """What the awaited job did -> share of the waiting job's step time."""
    if wait.worked_ratio is None or wait.waited_ratio is None:
        return {UNKNOWN: wait.ratio}
    worked, waited = wait.ratio * wait.worked_ratio, wait.ratio * wait.waited_ratio
    recorded = wait.ratio * wait.recorded_ratio
    rest = max(recorded - worked - waited, 0.0)
    return {WORKED: worked, WAITED: waited, REST: rest, UNKNOWN: wait.ratio - recorded}
