"""Curves of logged values over the steps, the loss first, a row per name."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import Samples
from traincope.analysis.efficiency.samples import names_to_draw
from traincope.arrays import Floats
from traincope.figures.drawing.canvas import stacked, step_axis
from traincope.figures.drawing.folding import by_count
from traincope.figures.drawing.labels import label
from traincope.palette import BLUE, SEVERE

MAX_POINTS = 1_000
"""Points of a line."""
ROW = 150


def logged_curves(samples: Sequence[Samples]) -> go.Figure:
    """Mean over the ranks that logged a value; a red cross where a rank's value was not finite."""
    names = names_to_draw(samples)
    curves = [_curve(label(name), [series for series in samples if series.name == name]) for name in names]
    figure = stacked(curves, between=0.08, height=len(names) * ROW + 60, showlegend=False)
    for axis, name in zip(figure.select_yaxes(), names, strict=True):
        axis.update(title={"text": label(name, max_length=20)})
    return figure.update_xaxes(step_axis(sorted({step for sample in samples for step in sample.steps.tolist()})))


def _curve(name: str, samples: Sequence[Samples]) -> list[go.Scatter]:
    steps, means, broken = _means(samples)
    fold = by_count(len(steps), max_places=MAX_POINTS)
    line = go.Scatter(
        name=name,
        x=steps[fold.starts],
        y=fold.mean(means),
        mode="lines+markers" if len(steps) == 1 else "lines",
        line={"color": BLUE, "width": 2},
        hovertemplate="step %{x}: %{y:.4g}<extra></extra>",
    )
    if not broken.any():
        return [line]
    height = float(np.nanmax(means)) if np.isfinite(means).any() else 0.0
    marks = go.Scatter(
        x=steps[broken],
        y=np.full(int(broken.sum()), height),
        mode="markers",
        marker={"color": SEVERE, "symbol": "x", "size": 9},
        hovertemplate="step %{x}: not finite<extra></extra>",
    )
    return [line, marks]


def _means(samples: Sequence[Samples]) -> tuple[np.ndarray, Floats, np.ndarray]:
    """Steps, the mean of the finite values of each (NaN: none), and a flag for non-finite values."""
    steps = np.unique(np.concatenate([sample.steps for sample in samples]))
    sums, counts, broken = np.zeros(len(steps)), np.zeros(len(steps)), np.zeros(len(steps), dtype=bool)
    for sample in samples:
        at, finite = np.searchsorted(steps, sample.steps), np.isfinite(sample.values)
        np.add.at(sums, at[finite], sample.values[finite])
        np.add.at(counts, at[finite], 1)
        broken[at[~finite]] = True
    return steps, np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), broken
