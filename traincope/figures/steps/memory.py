"""Memory over the run: the largest rank and the range of all ranks, for each measure."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import Samples
from traincope.arrays import Floats
from traincope.figures.drawing.canvas import canvas, step_axis
from traincope.figures.drawing.folding import by_count
from traincope.figures.drawing.labels import label
from traincope.palette import BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILLION, translucent
from traincope.units import size

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY_BLUE)
MAX_POINTS = 400
"""Points of a line; steps that share a point show their maximum."""
TICKS = 6
HOVER = "%{fullData.name}, step %{x}<br>max %{customdata[1]} (%{customdata[0]}), min %{customdata[2]}<extra></extra>"


def memory_over_steps(samples: Sequence[Samples]) -> go.Figure:
    """Bytes at the end of each step: a line for the highest rank, a band down to the lowest."""
    measures = tuple(dict.fromkeys(series.name for series in samples))
    traces = []
    highest = 0.0
    for measure, colour in zip(measures, COLOURS, strict=False):
        steps, held, ranks = _table([series for series in samples if series.name == measure])
        fold = by_count(len(steps), max_places=MAX_POINTS)
        low, high = -fold.max(-np.fmin.reduce(held, axis=0)), fold.max(np.fmax.reduce(held, axis=0))
        highest = max(highest, float(np.nanmax(high)))
        traces += _band(label(measure), steps[fold.starts], low, high, _rank_labels(held, ranks, fold.starts), colour)
    ticks = _ticks(highest)
    return canvas(
        traces,
        xaxis=step_axis(sorted({step for series in samples for step in series.steps.tolist()})),
        yaxis={"tickvals": ticks, "ticktext": [size(tick) for tick in ticks], "range": [0, max(highest, 1.0) * 1.06]},
    )


def _ticks(highest: float) -> Floats:
    """Round in binary units, about TICKS of them."""
    step = 2.0 ** np.ceil(np.log2(max(highest, 1.0) / TICKS))
    ticks: Floats = np.arange(0, highest + step, step)
    return ticks


def _table(samples: Sequence[Samples]) -> tuple[np.ndarray, Floats, list[int]]:
    """Steps, bytes as ranks x steps (NaN: not sampled), and the ranks."""
    steps = np.unique(np.concatenate([series.steps for series in samples]))
    held = np.full((len(samples), len(steps)), np.nan)
    for row, series in enumerate(samples):
        held[row, np.searchsorted(steps, series.steps)] = series.values
    return steps, held, [series.rank for series in samples]


def _rank_labels(held: Floats, ranks: list[int], starts: list[int]) -> list[str]:
    """The rank with the most memory in the first step of each point."""
    return [f"rank {ranks[row]}" for row in np.nan_to_num(held[:, starts], nan=-1.0).argmax(axis=0).tolist()]


def _band(name: str, steps: np.ndarray, low: Floats, high: Floats, labels: list[str], colour: str) -> list[go.Scatter]:
    line = {"color": colour, "width": 2}
    hovers = [[rank, size(top), size(bottom)] for rank, top, bottom in zip(labels, high, low, strict=True)]
    return [
        go.Scatter(
            x=steps, y=low, mode="lines", line={"width": 0}, showlegend=False, legendgroup=name, hoverinfo="skip"
        ),
        go.Scatter(
            name=name,
            legendgroup=name,
            x=steps,
            y=high,
            mode="lines+markers" if len(steps) == 1 else "lines",
            line=line,
            fill="tonexty",
            fillcolor=translucent(colour, 0.15),
            customdata=hovers,
            hovertemplate=HOVER,
        ),
    ]
