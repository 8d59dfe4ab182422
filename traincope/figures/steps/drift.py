"""Drift of number formats: distance from fp32's loss over the steps, and lost numbers per layer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from traincope.figures.drawing.canvas import stacked, step_axis
from traincope.palette import BLUE, GREEN, ORANGE, PURPLE, VERMILLION

if TYPE_CHECKING:
    from traincope.engine.precision.drift import Drift, FormatDrift

COLOURS = {"fp32": GREEN, "bf16": BLUE, "fp16": ORANGE, "fp8": VERMILLION, "fp8_block": PURPLE}
SHARES = {"saturated_ratio": "saturated", "underflowed_ratio": "underflowed"}
ROW = 220


def loss_drift(drift: "Drift") -> go.Figure:
    """Losses above, and each format's difference from fp32 below."""
    reference = drift.formats[0].losses
    steps = list(range(1, drift.steps + 1))
    curves = [_line(each.precision, steps, each.losses) for each in drift.formats]
    differences = [
        _line(each.precision, steps, [loss - other for loss, other in zip(each.losses, reference, strict=True)])
        for each in drift.formats[1:]
    ]
    for trace in differences:
        trace.update(showlegend=False)
    figure = stacked([curves, differences], between=0.1, height=2 * ROW)
    return figure.update_layout(
        yaxis={"title": {"text": "loss"}}, yaxis2={"title": {"text": "loss - fp32"}}
    ).update_xaxes(step_axis(steps))


def lost_numbers(each: "FormatDrift", *, ratio: str) -> go.Figure:
    """Share of saturated or underflowed numbers by layer (rows) and operand (columns). A gap is unknown."""
    layers = list(each.layers)
    kinds = list(dict.fromkeys(kind for operands in each.layers.values() for kind in operands))
    shares = [
        [None if kind not in each.layers[layer] else getattr(each.layers[layer][kind], ratio) for kind in kinds]
        for layer in layers
    ]
    heat = go.Heatmap(x=kinds, y=layers, z=shares, zmin=0.0, colorscale="Viridis", hovertemplate="%{y} %{x}: %{z:.3%}")
    figure = go.Figure(heat)
    title = f"{each.precision}: share of {SHARES[ratio]} numbers"
    return figure.update_layout(title=title, height=22 * len(layers) + 140, yaxis={"autorange": "reversed"})


def drift_page(drift: "Drift") -> str:
    """All figures in one HTML file that works offline."""
    figures = [loss_drift(drift)]
    figures += [lost_numbers(each, ratio=ratio) for each in drift.formats[1:] for ratio in SHARES]
    drawn = "".join(figure.to_html(full_html=False, include_plotlyjs=False) for figure in figures)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>drift - traincope</title>'
        f"<script>{get_plotlyjs()}</script></head><body>{drawn}</body></html>\n"
    )


def _line(name: str, steps: Sequence[int], values: Sequence[float]) -> go.Scatter:
    return go.Scatter(name=name, x=list(steps), y=list(values), mode="lines", line={"color": COLOURS[name], "width": 2})
