"""Communication as an icicle, of all ranks or of one; and of two beside each other, coloured by how they differ."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traincope.analysis import Called
from traincope.figures.canvas import canvas
from traincope.figures.sent import Box, boxes
from traincope.palette import BLUE, VERMILLION, tint
from traincope.units import duration

HEIGHT = 420
LETTERS = "#0b0f14"
MIDDLE = "#EEF0F2"
"""Alike on both sides."""


def communication_icicle(calls: Sequence[Called], *, rank_steps: int) -> go.Figure:
    """Of one rank in one step; `rank_steps` is what the sums of `calls` hold, at least 1."""
    shown = boxes(calls, rank_steps=(rank_steps,))
    return _drawn(
        shown,
        told=[[duration(box.mean_ns)] for box in shown],
        hover="%{label}<br>%{customdata[0]} a step, %{percentRoot:.1%} of all<extra></extra>",
        marker={"colors": [box.colour for box in shown]},
    )


def communication_difference(
    first: Sequence[Called], second: Sequence[Called], *, rank_steps: tuple[int, int], names: tuple[str, str]
) -> go.Figure:
    """The first against the second: as wide as both in the mean, coloured by what the first takes more or less."""
    shown = boxes(first, second, rank_steps=rank_steps)
    most = max((abs(box.ns[0] - box.ns[1]) for box in shown), default=0.0) or 1.0
    bar = {
        "title": {"text": f"{names[0]} takes"},
        "tickvals": [-most, 0, most],
        "ticktext": [f"{duration(most)} less", "as long", f"{duration(most)} more"],
        "thickness": 12,
    }
    return _drawn(
        shown,
        told=[[_signed(box), duration(box.ns[0]), duration(box.ns[1])] for box in shown],
        hover=f"%{{label}}<br>{names[0]} %{{customdata[1]}}, {names[1]} %{{customdata[2]}} a step<br>"
        "%{customdata[0]}<extra></extra>",
        marker={
            "colors": [box.ns[0] - box.ns[1] for box in shown],
            "colorscale": [(0.0, tint(BLUE, 0.2)), (0.5, MIDDLE), (1.0, tint(VERMILLION, 0.1))],
            "cmin": -most,
            "cmax": most,
            "showscale": True,
            "colorbar": bar,
        },
    )


def _drawn(shown: Sequence[Box], *, told: list[list[str]], hover: str, marker: dict[str, object]) -> go.Figure:
    trace = go.Icicle(
        ids=[box.key for box in shown],
        parents=[box.parent for box in shown],
        labels=[box.name for box in shown],
        values=[box.mean_ns for box in shown],
        branchvalues="total",
        customdata=told,
        texttemplate="%{label}<br>%{customdata[0]}",
        marker={"line": {"width": 1}, **marker},
        hovertemplate=hover,
        tiling={"orientation": "v", "pad": 1},
        pathbar={"visible": False},
        leaf={"opacity": 1},
        sort=False,
        textfont={"color": LETTERS},
    )
    return canvas([trace], height=HEIGHT)


def _signed(box: Box) -> str:
    difference = box.ns[0] - box.ns[1]
    return f"{duration(abs(difference))} {'more' if difference > 0 else 'less'}" if difference else "as long"
