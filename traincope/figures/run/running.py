"""Step time and MFU of a running job's latest steps."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from traincope.figures.drawing.canvas import canvas, legend_on_the_right, step_axis
from traincope.palette import BLUE, SEVERE
from traincope.store.side_tables.rows import Row


def step_times(rows: Sequence[Row]) -> go.Figure:
    """ms of the slowest rank in each step and the median of all ranks. Needs at least one row."""
    walls: dict[int, list[int]] = {}
    for row in rows:
        walls.setdefault(row.step, []).append(row.wall_ns)
    steps = sorted(walls)
    longest = [max(walls[step]) / 1e6 for step in steps]
    medians = [float(np.median(walls[step])) / 1e6 for step in steps]
    return canvas(
        [_line("slowest rank", steps, longest, colour=SEVERE), _line("median rank", steps, medians, colour=BLUE)],
        height=240,
        xaxis=step_axis(steps),
        yaxis={"title": {"text": "ms"}, "rangemode": "tozero"},
        legend=legend_on_the_right(),
    )


def utilization_steps(shares: Mapping[int, float]) -> go.Figure:
    """Percent of peak by step. Needs at least one step."""
    steps = sorted(shares)
    return canvas(
        [_line("MFU", steps, [100 * shares[step] for step in steps], colour=BLUE)],
        height=200,
        xaxis=step_axis(steps),
        yaxis={"title": {"text": "MFU, %"}, "rangemode": "tozero"},
        showlegend=False,
    )


def _line(name: str, steps: Sequence[int], values: Sequence[float], *, colour: str) -> go.Scatter:
    return go.Scatter(
        name=name,
        x=list(steps),
        y=list(values),
        mode="lines+markers" if len(steps) == 1 else "lines",
        line={"color": colour, "width": 2},
        hovertemplate=f"{name}, step %{{x}}: %{{y:.4g}}<extra></extra>",
    )
