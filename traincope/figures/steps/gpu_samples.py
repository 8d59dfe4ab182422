"""GPU samples over the steps: power, clock, temperature and utilization, a row each."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import Samples
from traincope.arrays import Floats
from traincope.figures.drawing.canvas import stacked, step_axis
from traincope.figures.drawing.folding import by_count
from traincope.palette import BLUE, GREEN, ORANGE, PURPLE, translucent

MAX_POINTS = 400
"""Points of a line; steps that share a point are averaged."""
ROW = 130


class _Row(NamedTuple):
    """Unit, scale and colour of a sample's row."""

    unit: str
    factor: float
    """Factor from the recorded unit to the displayed one."""
    colour: str


ROWS: Mapping[str, _Row] = {
    "power": _Row("W", 1e-3, ORANGE),
    "SM clock": _Row("MHz", 1, BLUE),
    "temperature": _Row("°C", 1, PURPLE),
    "utilization": _Row("%", 1, GREEN),
}


def gpu_sample_curves(samples: Sequence[Samples]) -> go.Figure:
    """`gpu_samples` of a run (at least one): the mean over the ranks in a band from lowest to highest."""
    names = [name for name in ROWS if any(series.name == name for series in samples)]
    rows = [_band(name, [series for series in samples if series.name == name]) for name in names]
    figure = stacked(rows, between=0.07, height=len(names) * ROW + 60, showlegend=False)
    for axis, name in zip(figure.select_yaxes(), names, strict=True):
        axis.update(title={"text": f"{name}, {ROWS[name].unit}"})
    return figure.update_xaxes(step_axis(sorted({step for series in samples for step in series.steps.tolist()})))


def _band(name: str, samples: Sequence[Samples]) -> list[go.Scatter]:
    """Lowest, highest and mean; the mean's hover text holds all three."""
    row = ROWS[name]
    steps = np.unique(np.concatenate([series.steps for series in samples]))
    values = np.full((len(samples), len(steps)), np.nan)
    for number, series in enumerate(samples):
        values[number, np.searchsorted(steps, series.steps)] = series.values * row.factor
    fold = by_count(len(steps), max_places=MAX_POINTS)
    low, high = -fold.max(-np.fmin.reduce(values, axis=0)), fold.max(np.fmax.reduce(values, axis=0))
    highest = np.nan_to_num(values[:, fold.starts], nan=-1.0).argmax(axis=0)
    whose = [f"rank {samples[number].rank}" for number in highest.tolist()]
    at = steps[fold.starts]
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    hovers = [[f"{bottom:,.0f}", f"{top:,.0f}", label] for bottom, top, label in zip(low, high, whose, strict=True)]
    return [
        go.Scatter(x=at, y=low, **edge),
        go.Scatter(x=at, y=high, fill="tonexty", fillcolor=translucent(row.colour, 0.18), **edge),
        go.Scatter(
            name=name,
            x=at,
            y=_mean(fold.mean(values)),
            mode="lines+markers" if len(at) < 3 else "lines",
            line={"color": row.colour, "width": 2},
            customdata=hovers,
            hovertemplate=f"{name}, step %{{x}}: %{{y:,.0f}} {row.unit}, mean of ranks<br>"
            f"%{{customdata[0]}} to %{{customdata[1]}} {row.unit}, highest on %{{customdata[2]}}<extra></extra>",
        ),
    ]


def _mean(read: Floats) -> Floats:
    """The mean over the ranks with a sample; every step has at least one."""
    known = ~np.isnan(read)
    mean: Floats = np.where(known, read, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return mean
