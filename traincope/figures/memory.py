"""Memory over the run: of each measure the ranks' range, and its largest."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import Samples
from traincope.figures.canvas import canvas, step_axis
from traincope.figures.folding import Floats, by_count
from traincope.figures.labels import label
from traincope.palette import BLUE, GREEN, ORANGE, PURPLE, SKY_BLUE, VERMILLION
from traincope.units import size

COLOURS = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY_BLUE)
MOST = 400
"""Points of a line; of steps that share one the largest."""
TICKS = 6
HOVER = "%{fullData.name}, step %{x}<br>most %{customdata[1]} (%{customdata[0]}), least %{customdata[2]}<extra></extra>"


def memory_over_steps(samples: Sequence[Samples]) -> go.Figure:
    """Bytes when a step was over: a line for the rank that held most, a band down to the one that held least."""
    measures = tuple(dict.fromkeys(one.name for one in samples))
    traces = []
    most = 0.0
    for measure, colour in zip(measures, COLOURS, strict=False):
        steps, held, ranks = _table([one for one in samples if one.name == measure])
        fold = by_count(len(steps), most=MOST)
        low, high = -fold.most(-np.fmin.reduce(held, axis=0)), fold.most(np.fmax.reduce(held, axis=0))
        most = max(most, float(np.nanmax(high)))
        traces += _band(label(measure), steps[fold.starts], low, high, _who(held, ranks, fold.starts), colour)
    ticks = _ticks(most)
    return canvas(
        traces,
        xaxis=step_axis(sorted({step for one in samples for step in one.steps.tolist()})),
        yaxis={"tickvals": ticks, "ticktext": [size(tick) for tick in ticks], "range": [0, max(most, 1.0) * 1.06]},
    )


def _ticks(most: float) -> Floats:
    """Round in binary units, about TICKS of them."""
    step = 2.0 ** np.ceil(np.log2(max(most, 1.0) / TICKS))
    ticks: Floats = np.arange(0, most + step, step)
    return ticks


def _table(samples: Sequence[Samples]) -> tuple[np.ndarray, Floats, list[int]]:
    """Steps, bytes as ranks x steps (NaN: not looked at), and the ranks."""
    steps = np.unique(np.concatenate([one.steps for one in samples]))
    held = np.full((len(samples), len(steps)), np.nan)
    for row, one in enumerate(samples):
        held[row, np.searchsorted(steps, one.steps)] = one.values
    return steps, held, [one.rank for one in samples]


def _who(held: Floats, ranks: list[int], starts: list[int]) -> list[str]:
    """The rank that held most in the first step of each point."""
    return [f"rank {ranks[row]}" for row in np.nan_to_num(held[:, starts], nan=-1.0).argmax(axis=0).tolist()]


def _band(name: str, steps: np.ndarray, low: Floats, high: Floats, who: list[str], colour: str) -> list[go.Scatter]:
    line = {"color": colour, "width": 2}
    told = [[rank, size(most), size(least)] for rank, most, least in zip(who, high, low, strict=True)]
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
            fillcolor=_pale(colour),
            customdata=told,
            hovertemplate=HOVER,
        ),
    ]


def _pale(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
