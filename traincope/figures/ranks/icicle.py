"""Icicle of communication for all ranks or one, and the difference of two, by axis, operation and call site."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traincope.analysis import CallSite
from traincope.figures.drawing.canvas import canvas
from traincope.figures.ranks.communication_tree import Box, boxes
from traincope.palette import BLUE, VERMILLION, tint
from traincope.units import duration

HEIGHT = 420
LETTERS = "#0b0f14"
MIDDLE = "#EEF0F2"
"""Colour of equal times."""


def communication_icicle(calls: Sequence[CallSite], rank_steps: int) -> go.Figure:
    """Communication of a rank per step; `rank_steps` (at least 1) is the number of rank-steps in the sums."""
    shown = boxes(calls, rank_steps=(rank_steps,))
    return _drawn(
        shown,
        texts=[[duration(box.mean_ns)] for box in shown],
        hover="%{label}<br>%{customdata[0]} per step, %{percentRoot:.1%} of all communication<extra></extra>",
        marker={"colors": [box.colour for box in shown]},
    )


def communication_difference(
    first: Sequence[CallSite], second: Sequence[CallSite], *, rank_steps: tuple[int, int], names: tuple[str, str]
) -> go.Figure:
    """The first compared with the second: width is the mean of both, colour their difference."""
    shown = boxes(first, second, rank_steps=rank_steps)
    largest = max((abs(box.ns[0] - box.ns[1]) for box in shown), default=0.0) or 1.0
    bar = {
        "title": {"text": f"{names[0]} takes"},
        "tickvals": [-largest, 0, largest],
        "ticktext": [f"{duration(largest)} less", "equal", f"{duration(largest)} more"],
        "thickness": 12,
    }
    return _drawn(
        shown,
        texts=[[_signed(box), duration(box.ns[0]), duration(box.ns[1])] for box in shown],
        hover=f"%{{label}}<br>{names[0]} %{{customdata[1]}}, {names[1]} %{{customdata[2]}} per step<br>"
        "%{customdata[0]}<extra></extra>",
        marker={
            "colors": [box.ns[0] - box.ns[1] for box in shown],
            "colorscale": [(0.0, tint(BLUE, 0.2)), (0.5, MIDDLE), (1.0, tint(VERMILLION, 0.1))],
            "cmin": -largest,
            "cmax": largest,
            "showscale": True,
            "colorbar": bar,
        },
    )


def _drawn(shown: Sequence[Box], *, texts: list[list[str]], hover: str, marker: dict[str, object]) -> go.Figure:
    trace = go.Icicle(
        ids=[box.key for box in shown],
        parents=[box.parent for box in shown],
        labels=[box.name for box in shown],
        values=[box.mean_ns for box in shown],
        branchvalues="total",
        customdata=texts,
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
    return f"{duration(abs(difference))} {'more' if difference > 0 else 'less'}" if difference else "equal"
