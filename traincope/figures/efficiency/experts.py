"""Load of the experts of a mixture: a row per layer, a column per expert."""

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import ExpertLoads
from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.figures.drawing.scales import around
from traincope.units import count

MIN_LIMIT = 0.5
"""Smallest range of the colours, as a share of the mean; small differences stay pale."""


def expert_load(loads: ExpertLoads) -> go.Figure:
    """Rows of each expert over its layer's mean: 1 is a fair share; empty cells: the layer has fewer experts."""
    widest = max(len(layer.tokens) for layer in loads.layers)
    cells = np.full((len(loads.layers), widest), np.nan)
    hovers = [["" for _ in range(widest)] for _ in loads.layers]
    for row, layer in enumerate(loads.layers):
        total = sum(layer.tokens)
        for expert, rows in enumerate(layer.tokens):
            cells[row, expert] = rows * len(layer.tokens) / total if total else 1.0
            hovers[row][expert] = count(round(rows), "row")
    limit = max(MIN_LIMIT, float(np.nanmax(np.abs(cells - 1))))
    trace = go.Heatmap(
        z=cells,
        y=list(range(len(cells))),
        customdata=hovers,
        colorscale=around(),
        zmin=1 - limit,
        zmax=1 + limit,
        xgap=1,
        ygap=1,
        hoverongaps=False,
        colorbar={"title": {"text": "times the mean"}, "thickness": 12},
        hovertemplate="expert %{x}: %{customdata} per step, %{z:.2f} times the mean<extra></extra>",
    )
    return canvas(
        [trace],
        height=height_of(len(cells), legend_lines=8),
        xaxis={"title": {"text": "expert"}, "showgrid": False, "zeroline": False, "dtick": max(widest // 16, 1)},
        yaxis=named_rows([f"layer {layer.layer}" for layer in loads.layers]),
    )
