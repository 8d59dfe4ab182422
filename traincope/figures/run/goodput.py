"""Parts of the job's time as one bar, and its attempts on a common clock below."""

from collections.abc import Iterator

import plotly.graph_objects as go

from traincope.analysis import Goodput
from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.figures.drawing.clock import Clock, clock
from traincope.palette import colour
from traincope.units import count, duration, share

MAX_ATTEMPTS = 40
"""Attempts with a row of their own: the latest ones."""

UNKNOWN = "Goodput is unknown: no attempt reached a step, or imported traces show a part of the job only."


def goodput_bars(job: Goodput) -> go.Figure:
    """Bars of the job and its attempts; `steps` replaces `productive` where lost steps are unknown.

    An attempt shows where its rolled back steps were, and its steps after the last checkpoint if they were lost.
    """
    attempts = job.attempts[-MAX_ATTEMPTS:]
    on = clock(job.attempts[0].began_ns, job.attempts[0].began_ns + job.elapsed_ns)
    names = ["whole job", *(f"attempt {attempt.number}" for attempt in attempts)]
    traces, lost = list(_whole(job, on=on)), {loss.attempt: loss for loss in job.losses}
    for row, attempt in enumerate(attempts, start=1):
        first = attempt.last_ns if attempt.first_step_ns is None else attempt.first_step_ns
        hover = f"attempt {attempt.number}: {count(attempt.num_steps, 'step')}"
        traces.append(_span(row, attempt.began_ns, first, "restart" if row > 1 else "startup", hover, on=on))
        traces.append(_span(row, first, attempt.last_ns, "productive", hover, on=on))
        traces += [_span(row, *span, "rolled_back", f"{hover}, rolled back", on=on) for span in attempt.undone_spans]
        loss = lost.get(attempt.number)
        if loss is not None and loss.steps and attempt.unsaved_since_ns is not None:
            hover = f"attempt {attempt.number}: {count(loss.steps, 'lost step')}"
            traces.append(_span(row, attempt.unsaved_since_ns, attempt.last_ns, "lost", hover, on=on))
    return canvas(
        traces,
        height=height_of(len(names)),
        barmode="overlay",
        bargap=0.35,
        xaxis={"title": {"text": f"{on.unit} since the job began"}, "rangemode": "tozero"},
        yaxis=named_rows(names),
    )


def _whole(job: Goodput, *, on: Clock) -> Iterator[go.Bar]:
    at = on.began_ns
    for part, ns in job.parts.items():
        taken = job.steps_ns - job.rolled_back_ns if ns is None and part == "productive" else ns
        if taken:
            name = "steps" if part == "productive" and job.lost_ns is None else part.replace("_", " ")
            of_all = share(taken / job.elapsed_ns if job.elapsed_ns else None)
            yield _bar(0, at, at + taken, part, name, f"{name}: {duration(taken)}, {of_all}", on=on, legend=True)
            at += taken


def _span(row: int, start_ns: int, end_ns: int, part: str, hover: str, *, on: Clock) -> go.Bar:
    return _bar(row, start_ns, end_ns, part, part, f"{hover}<br>{duration(end_ns - start_ns)}", on=on, legend=False)


def _bar(row: int, start_ns: int, end_ns: int, part: str, name: str, hover: str, *, on: Clock, legend: bool) -> go.Bar:
    return go.Bar(
        name=name,
        showlegend=legend,
        orientation="h",
        y=[row],
        base=[on.at(start_ns)],
        x=[on.length(end_ns - start_ns)],
        marker={"color": colour(part)},
        customdata=[hover],
        hovertemplate="%{customdata}<extra></extra>",
    )
