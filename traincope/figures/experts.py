"""What the experts of a mixture got to do: a row a layer, a column an expert."""

import numpy as np
import plotly.graph_objects as go

from traincope.analysis import ExpertLoads
from traincope.figures.canvas import canvas, height_of, named_rows
from traincope.figures.scales import around
from traincope.units import count

LEAST_LIMIT = 0.5
"""Of a mean: what differs from it by less stays pale."""


def expert_load(loads: ExpertLoads) -> go.Figure:
    """Each expert's rows over its layer's mean: 1 is its fair part; empty where a layer has fewer experts."""
    widest = max(len(layer.tokens) for layer in loads.layers)
    cells = np.full((len(loads.layers), widest), np.nan)
    told = [["" for _ in range(widest)] for _ in loads.layers]
    for row, layer in enumerate(loads.layers):
        total = sum(layer.tokens)
        for expert, rows in enumerate(layer.tokens):
            cells[row, expert] = rows * len(layer.tokens) / total if total else 1.0
            told[row][expert] = count(round(rows), "row")
    limit = max(LEAST_LIMIT, float(np.nanmax(np.abs(cells - 1))))
    trace = go.Heatmap(
        z=cells,
        y=list(range(len(cells))),
        customdata=told,
        colorscale=around(),
        zmin=1 - limit,
        zmax=1 + limit,
        xgap=1,
        ygap=1,
        hoverongaps=False,
        colorbar={"title": {"text": "x mean"}, "thickness": 12},
        hovertemplate="expert %{x}: %{customdata} a step, %{z:.2f} x the mean<extra></extra>",
    )
    return canvas(
        [trace],
        height=height_of(len(cells), beside=8),
        xaxis={"title": {"text": "expert"}, "showgrid": False, "zeroline": False, "dtick": max(widest // 16, 1)},
        yaxis=named_rows([f"layer {layer.layer}" for layer in loads.layers]),
    )
