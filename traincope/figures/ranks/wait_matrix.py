"""Wait of each rank in each group: a row per group, a column per rank."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import GroupWait
from traincope.arrays import Floats
from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.figures.drawing.folding import by_count
from traincope.figures.drawing.labels import label
from traincope.figures.drawing.scales import rising
from traincope.units import milliseconds, numbers

MAX_GROUPS = 48
"""Groups in the figure: those with the most wait."""
MAX_COLUMNS = 128
"""Columns; with more ranks, neighbours share a column and the longest wait shows."""


def wait_matrix(groups: Sequence[GroupWait], steps: int) -> go.Figure:
    """ms of wait per step over `steps` counted steps (at least 1); empty for non-members and missing ranks."""
    chosen = sorted(range(len(groups)), key=lambda at: _waited(groups[at]), reverse=True)[:MAX_GROUPS]
    shown = [groups[at] for at in sorted(chosen)]
    ranks = sorted({rank for group in shown for rank in group.ranks})
    fold = by_count(len(ranks), max_places=MAX_COLUMNS)
    cells = fold.max(_cells(shown, ranks)) / steps / 1e6
    columns = [_ranks(ranks, *fold.ends(place)) for place in range(len(fold))]
    names = [_name(group) for group in shown]
    trace = go.Heatmap(
        z=cells,
        x=columns,
        y=list(range(len(shown))),
        customdata=[[[milliseconds(1e6 * ms), name] for ms in row] for row, name in zip(cells, names, strict=True)],
        colorscale=rising(),
        zmin=0,
        xgap=1,
        ygap=1,
        hoverongaps=False,
        colorbar={"title": {"text": "ms per step"}, "thickness": 12},
        hovertemplate="rank %{x} waited %{customdata[0]} ms per step<br>in %{customdata[1]}<extra></extra>",
    )
    return canvas(
        [trace],
        height=height_of(len(shown), legend_lines=8),
        xaxis={"title": {"text": "rank"}, "type": "category", "showgrid": False},
        yaxis=named_rows(names),
    )


def _cells(groups: Sequence[GroupWait], ranks: Sequence[int]) -> Floats:
    """Wait in ns, groups x ranks."""
    column = {rank: at for at, rank in enumerate(ranks)}
    cells = np.full((len(groups), len(ranks)), np.nan)
    for row, group in enumerate(groups):
        for rank, ns in zip(group.ranks, group.waits_ns, strict=True):
            cells[row, column[rank]] = np.nan if ns is None else ns
    return cells


def _ranks(ranks: Sequence[int], first: int, last: int) -> str:
    return str(ranks[first]) if first == last else f"{ranks[first]}-{ranks[last]}"


def _waited(group: GroupWait) -> int:
    return sum(ns or 0 for ns in group.waits_ns)


def _name(group: GroupWait) -> str:
    return f"{label(group.axis, max_length=24)}: {label(numbers(group.ranks), max_length=24)}"
