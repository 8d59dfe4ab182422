"""Which rank waited in which group: a row a group, a column a rank."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import GroupWait
from traincope.figures.canvas import canvas, height_of, named_rows
from traincope.figures.labels import label
from traincope.figures.scales import rising
from traincope.units import milliseconds, numbers

MOST = 48
"""Groups: those in which was waited most."""


def wait_matrix(groups: Sequence[GroupWait], *, steps: int) -> go.Figure:
    """Ms of waiting a step; empty where a rank is no member, or left no record. `steps` counted, at least 1."""
    chosen = sorted(groups, key=_waited, reverse=True)[:MOST]
    shown = [group for group in groups if group in chosen]
    ranks = sorted({rank for group in shown for rank in group.ranks})
    cells = np.full((len(shown), len(ranks)), np.nan)
    for row, group in enumerate(shown):
        for rank, ns in zip(group.ranks, group.waits_ns, strict=True):
            cells[row, ranks.index(rank)] = np.nan if ns is None else ns / steps / 1e6
    names = [_name(group) for group in shown]
    trace = go.Heatmap(
        z=cells,
        x=[str(rank) for rank in ranks],
        y=list(range(len(shown))),
        customdata=[
            [[milliseconds(1e6 * value), name] for value in row] for row, name in zip(cells, names, strict=True)
        ],
        colorscale=rising(),
        zmin=0,
        xgap=1,
        ygap=1,
        hoverongaps=False,
        colorbar={"title": {"text": "ms a step"}, "thickness": 12},
        hovertemplate="rank %{x} waited %{customdata[0]} ms a step<br>in %{customdata[1]}<extra></extra>",
    )
    return canvas(
        [trace],
        height=height_of(len(shown), beside=8),
        xaxis={"title": {"text": "rank"}, "type": "category", "showgrid": False},
        yaxis=named_rows(names),
    )


def _waited(group: GroupWait) -> int:
    return sum(ns or 0 for ns in group.waits_ns)


def _name(group: GroupWait) -> str:
    return f"{label(group.axis, most=24)}: {label(numbers(group.ranks), most=24)}"
