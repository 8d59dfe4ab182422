"""The ledger over the run: one stacked bar per step."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import Ledger
from traincope.analysis.attribution.terms import BUBBLE, term_order
from traincope.arrays import Floats
from traincope.figures.drawing.canvas import canvas, legend_on_the_right, step_axis
from traincope.figures.drawing.folding import Fold, by_count
from traincope.figures.drawing.labels import label
from traincope.palette import colour
from traincope.store.side_tables.rows import Row

MAX_BARS = 240
"""Bars; more steps share bars, evenly."""
MIN_RATIO = 0.001
"""Share of all time below which a term is not drawn."""


def ledger_steps(ledger: Ledger) -> go.Figure:
    """Mean ms over the ranks in each counted step (at least one), by term; steps that share a bar are averaged."""
    return _bars(*_means(ledger))


def ledger_rows(rows: Sequence[Row]) -> go.Figure:
    """The ledger of a running job, for the steps that have a row (at least one)."""
    steps = np.unique([row.step for row in rows])
    at = np.searchsorted(steps, [row.step for row in rows])
    sums = {term: np.zeros(len(steps)) for term in _terms(rows)}
    for place, row in zip(at.tolist(), rows, strict=True):
        for term, ns in row.terms.items():
            sums[term][place] += ns
    counts = np.bincount(at)
    return _bars(steps, {term: total / counts / 1e6 for term, total in sums.items()})


def _terms(rows: Sequence[Row]) -> tuple[str, ...]:
    """All terms of the rows, in the ledger's order."""
    present = dict.fromkeys(term for row in rows for term in row.terms)
    axes = {term.partition("[")[2].rstrip("]") for term in present if "[" in term}
    order = term_order(axes, pipeline=any(term in BUBBLE for term in present))
    return (*order, *(term for term in present if term not in order))


def _bars(steps: np.ndarray, means: dict[str, Floats]) -> go.Figure:
    fold = by_count(len(steps), max_places=MAX_BARS)
    names = [_steps(steps, fold, place) for place in range(len(fold))]
    traces = [
        go.Bar(
            name=label(term),
            x=steps[fold.starts],
            y=fold.mean(means[term]),
            marker={"color": colour(term), "line": {"width": 0}},
            customdata=names,
            hovertemplate="%{fullData.name}<br>%{customdata}: %{y:.2f} ms<extra></extra>",
        )
        for term in _layers(means)
    ]
    return canvas(
        traces,
        height=380,
        barmode="relative",
        bargap=0.08 if len(fold) <= 60 else 0,
        xaxis=step_axis(steps.tolist()),
        yaxis={"title": {"text": "ms, mean over ranks"}, "rangemode": "tozero"},
        legend={**legend_on_the_right(), "traceorder": "reversed"},
    )


def _means(ledger: Ledger) -> tuple[np.ndarray, dict[str, Floats]]:
    """Counted steps, and the mean ms of each term over the ranks that completed them."""
    chosen = [(rank, rank.numbers[rank.counted]) for rank in ledger.ranks]
    steps = np.unique(np.concatenate([numbers for _, numbers in chosen]))
    counts = np.zeros(len(steps))
    sums = {term: np.zeros(len(steps)) for term in ledger.order}
    for rank, numbers in chosen:
        at = np.searchsorted(steps, numbers)
        counts[at] += 1
        for term, ns in rank.terms.items():
            if ns is not None:
                sums[term][at] += ns[rank.counted]
    return steps, {term: total / counts / 1e6 for term, total in sums.items()}


def _layers(means: dict[str, Floats]) -> list[str]:
    whole = sum(float(values.sum()) for values in means.values())
    return [term for term, values in means.items() if np.abs(values).sum() > MIN_RATIO * whole]


def _steps(steps: np.ndarray, fold: Fold, place: int) -> str:
    first, last = fold.ends(place)
    return f"step {steps[first]}" if first == last else f"steps {steps[first]}-{steps[last]}"
