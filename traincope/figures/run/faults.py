"""Faults and events on the clock of the run: a row per kind, faults in red, other events in grey."""

from collections.abc import Sequence
from typing import NamedTuple

import plotly.graph_objects as go

from traincope.analysis import Fault
from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.figures.drawing.clock import Clock, clock
from traincope.figures.drawing.labels import label
from traincope.figures.run.fault_markers import clock_axis, fault_markers
from traincope.palette import GREY
from traincope.store import Attempt, Logbook
from traincope.units import count

MAX_BANDS = 40
MAX_FAULTS = 2_000
"""Markers in the figure; faults take precedence over events, earlier over later ones."""


class Band(NamedTuple):
    """A stretch in which the job ran: an attempt, or a run of a logbook, which has no name."""

    name: str
    began_ns: int
    ended_ns: int
    text: str


def _bands(attempts: Sequence[Attempt], book: Logbook | None) -> list[Band]:
    """The attempts of a job with several, or the runs of a logbook; the latest ones."""
    runs = () if book is None else book.runs
    bands = [Band("", run.start_ns, run.end_ns, f"run {run.label}") for run in runs]
    for each in attempts if len(attempts) > 1 and book is None else ():
        text = f"attempt {each.number}: {count(each.num_steps, 'step')}"
        bands.append(Band(str(each.number), each.began_ns, each.last_ns, text))
    return bands[-MAX_BANDS:]


def fault_timeline(
    faults: Sequence[Fault], began_ns: int, end_ns: int, attempts: Sequence[Attempt] = (), book: Logbook | None = None
) -> go.Figure:
    """Faults and events with a time between the job's begin and end; attempts or runs have a row of their own."""
    bands = _bands(attempts, book)
    timed = [fault for fault in faults if fault.timed]
    first = sorted(timed, key=lambda fault: (fault.is_mark, fault.at_ns))[:MAX_FAULTS]
    shown = sorted(first, key=lambda fault: fault.at_ns)
    kinds = list(dict.fromkeys(fault.kind for fault in shown))
    rows = [kind.value.replace("_", " ") for kind in kinds]
    on = clock(began_ns, end_ns)
    traces = fault_markers(shown, [kinds.index(fault.kind) for fault in shown], on=on)
    if bands:
        traces.append(_named(bands, row=len(rows), on=on))
        rows.append("attempt" if bands[0].name else "run")
    figure = canvas(
        traces,
        height=height_of(len(rows)),
        xaxis=clock_axis(shown, on=on, end_ns=end_ns),
        yaxis=named_rows(rows),
        barmode="overlay",
    )
    for band in bands:
        x0, x1 = on.at(band.began_ns), on.at(band.ended_ns)
        figure.add_vrect(x0=x0, x1=x1, fillcolor=GREY, opacity=0.15, line_width=0, layer="below")
    return figure


def _named(bands: Sequence[Band], *, row: int, on: Clock) -> go.Bar:
    return go.Bar(
        orientation="h",
        showlegend=False,
        y=[row] * len(bands),
        base=[on.at(band.began_ns) for band in bands],
        x=[on.length(band.ended_ns - band.began_ns) for band in bands],
        width=0.6,
        marker={"color": GREY},
        text=[label(band.name) for band in bands],
        textposition="inside",
        customdata=[label(band.text) for band in bands],
        hovertemplate="%{customdata}<extra></extra>",
    )
