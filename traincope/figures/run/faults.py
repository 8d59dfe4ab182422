"""Faults and events on the clock of the run: a row per kind, faults in red, other events in grey."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traincope.analysis import Fault
from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.figures.drawing.clock import Clock, clock
from traincope.figures.run.fault_markers import clock_axis, fault_markers
from traincope.figures.run.goodput import MAX_ATTEMPTS
from traincope.palette import GREY
from traincope.store import Attempt
from traincope.units import count

MAX_FAULTS = 2_000
"""Markers in the figure; faults take precedence over events, earlier over later ones."""


def fault_timeline(
    faults: Sequence[Fault], *, began_ns: int, end_ns: int, attempts: Sequence[Attempt] = ()
) -> go.Figure:
    """Faults and events between the job's begin and end. Several attempts are bands, with a row of their own."""
    first = sorted(faults, key=lambda fault: (fault.is_mark, fault.at_ns))[:MAX_FAULTS]
    shown = sorted(first, key=lambda fault: fault.at_ns)
    kinds = list(dict.fromkeys(fault.kind for fault in shown))
    rows = [kind.value.replace("_", " ") for kind in kinds]
    on = clock(began_ns, end_ns)
    traces = fault_markers(shown, [kinds.index(fault.kind) for fault in shown], on=on)
    bands = attempts[-MAX_ATTEMPTS:] if len(attempts) > 1 else ()
    if bands:
        traces.append(_named(bands, row=len(rows), on=on))
        rows.append("attempt")
    figure = canvas(
        traces,
        height=height_of(len(rows)),
        xaxis=clock_axis(shown, on=on, end_ns=end_ns),
        yaxis=named_rows(rows),
        barmode="overlay",
    )
    for attempt in bands:
        x0, x1 = on.at(attempt.began_ns), on.at(attempt.last_ns)
        figure.add_vrect(x0=x0, x1=x1, fillcolor=GREY, opacity=0.15, line_width=0, layer="below")
    return figure


def _named(attempts: Sequence[Attempt], *, row: int, on: Clock) -> go.Bar:
    return go.Bar(
        orientation="h",
        showlegend=False,
        y=[row] * len(attempts),
        base=[on.at(attempt.began_ns) for attempt in attempts],
        x=[on.length(attempt.last_ns - attempt.began_ns) for attempt in attempts],
        width=0.6,
        marker={"color": GREY},
        text=[str(attempt.number) for attempt in attempts],
        textposition="inside",
        customdata=[f"attempt {attempt.number}: {count(attempt.num_steps, 'step')}" for attempt in attempts],
        hovertemplate="%{customdata}<extra></extra>",
    )
