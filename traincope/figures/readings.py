"""What the GPUs read over the steps: power, clock, temperature, utilization; a row each."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import Samples
from traincope.figures.canvas import stacked, step_axis
from traincope.figures.folding import Floats, by_count
from traincope.palette import BLUE, GREEN, ORANGE, PURPLE

MOST = 400
"""Points of a line; steps that share one are read together."""
ROW = 130


class _Row(NamedTuple):
    """How a reading is drawn."""

    unit: str
    factor: float
    """From the unit that is recorded."""
    colour: str


ROWS: Mapping[str, _Row] = {
    "power": _Row("W", 1e-3, ORANGE),
    "SM clock": _Row("MHz", 1, BLUE),
    "temperature": _Row("C", 1, PURPLE),
    "utilization": _Row("%", 1, GREEN),
}


def gpu_readings(samples: Sequence[Samples]) -> go.Figure:
    """`gpu_samples` of a run: the mean over the ranks, in a band from the least to the most; at least one."""
    names = [name for name in ROWS if any(one.name == name for one in samples)]
    rows = [_band(name, [one for one in samples if one.name == name]) for name in names]
    figure = stacked(rows, between=0.07, height=len(names) * ROW + 60, showlegend=False)
    for axis, name in zip(figure.select_yaxes(), names, strict=True):
        axis.update(title={"text": f"{name}, {ROWS[name].unit}"})
    return figure.update_xaxes(step_axis(sorted({step for one in samples for step in one.steps.tolist()})))


def _band(name: str, samples: Sequence[Samples]) -> list[go.Scatter]:
    """Least, most and mean; the mean tells of them all."""
    row = ROWS[name]
    steps = np.unique(np.concatenate([one.steps for one in samples]))
    read = np.full((len(samples), len(steps)), np.nan)
    for number, one in enumerate(samples):
        read[number, np.searchsorted(steps, one.steps)] = one.values * row.factor
    fold = by_count(len(steps), most=MOST)
    low, high = -fold.most(-np.fmin.reduce(read, axis=0)), fold.most(np.fmax.reduce(read, axis=0))
    highest = np.nan_to_num(read[:, fold.starts], nan=-1.0).argmax(axis=0)
    whose = [f"rank {samples[number].rank}" for number in highest.tolist()]
    at = steps[fold.starts]
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    told = [[f"{least:,.0f}", f"{most:,.0f}", who] for least, most, who in zip(low, high, whose, strict=True)]
    return [
        go.Scatter(x=at, y=low, **edge),
        go.Scatter(x=at, y=high, fill="tonexty", fillcolor=_pale(row.colour), **edge),
        go.Scatter(
            name=name,
            x=at,
            y=_mean(fold.mean(read)),
            mode="lines+markers" if len(at) < 3 else "lines",
            line={"color": row.colour, "width": 2},
            customdata=told,
            hovertemplate=f"{name}, step %{{x}}: %{{y:,.0f}} {row.unit} in the mean<br>"
            f"%{{customdata[0]}} to %{{customdata[1]}} {row.unit}, most on %{{customdata[2]}}<extra></extra>",
        ),
    ]


def _mean(read: Floats) -> Floats:
    """Over the ranks that read something in a step; in every step one did."""
    known = ~np.isnan(read)
    mean: Floats = np.where(known, read, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    return mean


def _pale(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"
