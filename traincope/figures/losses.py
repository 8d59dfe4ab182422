"""What the training logged, over its steps: the loss first, a row a name."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import Samples
from traincope.figures.canvas import stacked, step_axis
from traincope.figures.folding import Floats, by_count
from traincope.figures.labels import label
from traincope.palette import BLUE, SEVERE

MOST_NAMES = 4
MOST = 1_000
"""Points of a line."""
LOSS = "loss"
ROW = 150


def names_to_draw(samples: Sequence[Samples]) -> tuple[str, ...]:
    """Those with `loss` in their name first, then as they were logged; four of them."""
    names = dict.fromkeys(one.name for one in samples)
    return tuple(sorted(names, key=lambda name: LOSS not in name.lower()))[:MOST_NAMES]


def logged_curves(samples: Sequence[Samples]) -> go.Figure:
    """The mean over the ranks that logged it; a red mark where a rank's value was no number or endless."""
    names = names_to_draw(samples)
    curves = [_curve(label(name), [one for one in samples if one.name == name]) for name in names]
    figure = stacked(curves, between=0.08, height=len(names) * ROW + 60, showlegend=False)
    for axis, name in zip(figure.select_yaxes(), names, strict=True):
        axis.update(title={"text": label(name, most=20)})
    return figure.update_xaxes(step_axis(sorted({step for one in samples for step in one.steps.tolist()})))


def _curve(name: str, samples: Sequence[Samples]) -> list[go.Scatter]:
    steps, means, broken = _means(samples)
    fold = by_count(len(steps), most=MOST)
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
    """Steps, the mean of the finite values in each (NaN: none), and whether any was not finite."""
    steps = np.unique(np.concatenate([one.steps for one in samples]))
    sums, counts, broken = np.zeros(len(steps)), np.zeros(len(steps)), np.zeros(len(steps), dtype=bool)
    for one in samples:
        at, finite = np.searchsorted(steps, one.steps), np.isfinite(one.values)
        np.add.at(sums, at[finite], one.values[finite])
        np.add.at(counts, at[finite], 1)
        broken[at[~finite]] = True
    return steps, np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), broken
