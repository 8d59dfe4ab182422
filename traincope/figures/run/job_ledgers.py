"""Ledgers of jobs that work together: a bar per job, with its waits for other jobs named by the awaited one."""

from collections.abc import Iterator, Mapping

import plotly.graph_objects as go

from traincope.analysis import Ledger
from traincope.analysis.attribution.terms import JOB_WAIT
from traincope.analysis.communication.workflow import Workflow
from traincope.figures.drawing.canvas import canvas, height_of, legend_on_the_right, named_rows
from traincope.figures.drawing.labels import label
from traincope.palette import colour, tint
from traincope.units import share

MIN_RATIO = 0.001
"""Share of a step below which a part of no job is drawn."""
TINTS = (0.0, 0.3, 0.5, 0.7)
"""Tints of the waits' colour, one per awaited job in turn."""


def job_ledgers(ledgers: Mapping[str, Ledger], workflow: Workflow) -> go.Figure:
    """Shares of each job's step time. `ledgers`: role -> ledger, of the workflow's jobs with at least one step."""
    parts = {role: dict(_parts(role, ledger, workflow)) for role, ledger in ledgers.items()}
    shown = [
        term
        for term in _order(ledgers, workflow)
        if any(abs(each.get(term) or 0.0) > MIN_RATIO for each in parts.values())
    ]
    names = [label(role) for role in ledgers]
    colours = _colours(workflow)
    traces = [
        go.Bar(
            name=label(term),
            orientation="h",
            y=list(range(len(names))),
            x=[each.get(term) for each in parts.values()],
            marker={"color": colours.get(term) or colour(term), "line": {"width": 0}},
            customdata=[[name, share(each.get(term))] for name, each in zip(names, parts.values(), strict=True)],
            hovertemplate="%{customdata[0]}<br>%{fullData.name} %{customdata[1]}<extra></extra>",
        )
        for term in shown
    ]
    return canvas(
        traces,
        height=height_of(len(names), legend_lines=len(traces)),
        barmode="relative",
        bargap=0.35,
        xaxis={"tickformat": ".0%", "title": {"text": "share of the job's step time"}},
        yaxis=named_rows(names),
        legend=legend_on_the_right(),
    )


def _wait_for(role: str) -> str:
    return f"wait for {role}"


def _order(ledgers: Mapping[str, Ledger], workflow: Workflow) -> list[str]:
    """The waits first, then the terms in the ledgers' order."""
    waits = [_wait_for(wait.awaited) for wait in workflow.waits]
    return list(dict.fromkeys([*waits, *(term for ledger in ledgers.values() for term in ledger.order)]))


def _colours(workflow: Workflow) -> dict[str, str]:
    awaited = dict.fromkeys(_wait_for(wait.awaited) for wait in workflow.waits)
    return {name: tint(colour(JOB_WAIT), TINTS[at % len(TINTS)]) for at, name in enumerate(awaited)}


def _parts(role: str, ledger: Ledger, workflow: Workflow) -> Iterator[tuple[str, float | None]]:
    """Term -> share. The term of the waits is divided by the awaited jobs, in proportion to their waits."""
    waits = [wait for wait in workflow.waits if wait.waiting == role]
    total_ns = sum(wait.ns for wait in waits)
    for term in ledger.order:
        ratio = ledger.share(term)
        if term == JOB_WAIT and ratio is not None and total_ns:
            for wait in waits:
                yield _wait_for(wait.awaited), ratio * wait.ns / total_ns
        else:
            yield term, ratio
