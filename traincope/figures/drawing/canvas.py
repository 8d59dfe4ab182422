"""The common frame of all figures: margins, legend and the light template by default."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.basedatatypes import BaseTraceType

from traincope.figures.drawing.templates import LIGHT

HEIGHT = 320
"""Default height of a figure, in pixels."""
ROW, THIN, LINE, AROUND = 22, 12, 20, 90
"""Pixels of a row of bars, of a thin row, of a legend line, and of axes and legend together."""
FEW_STEPS = 12
MANY = 30
"""Rows above which they are thin and only some are named."""


def canvas(traces: Sequence[BaseTraceType], *, height: int = HEIGHT, **layout: object) -> go.Figure:
    """A figure of these traces; `layout` has plotly's keys."""
    framed: Mapping[str, object] = {
        "template": LIGHT,
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "xanchor": "left"},
        "hovermode": "closest",
        "uniformtext": {"minsize": 9, "mode": "hide"},
        **layout,
    }
    return go.Figure(data=list(traces), layout=framed)


def stacked(rows: Sequence[Sequence[BaseTraceType]], *, between: float, **layout: object) -> go.Figure:
    """Figures of one height above each other, on one x axis; row i has `yaxis{i + 1}` (the first `yaxis`).

    `between` is the gap between two rows, as a share of the whole height.
    """
    height = (1 - between * (len(rows) - 1)) / len(rows)
    axes: dict[str, object] = {"xaxis": {"anchor": _axis("y", len(rows) - 1)}}
    traces = []
    for number, row in enumerate(rows):
        top = 1 - number * (height + between)
        axes[_axis("yaxis", number)] = {"domain": [max(top - height, 0.0), top], "anchor": "x"}
        for trace in row:
            trace.update(xaxis="x", yaxis=_axis("y", number))
            traces.append(trace)
    return canvas(traces).update_layout(axes).update_layout(layout)


def _axis(letter: str, number: int) -> str:
    return letter if number == 0 else f"{letter}{number + 1}"


def height_of(rows: int, *, legend_lines: int = 2) -> int:
    """Pixels that `rows` of bars and `legend_lines` next to them need; many rows are thin.

    Fewer than two lines would put an axis title on top of its numbers.
    """
    return max(rows * (ROW if rows <= MANY else THIN), max(legend_lines, 2) * LINE) + AROUND


def named_rows(names: Sequence[str]) -> dict[str, object]:
    """A vertical axis of rows 0, 1, ... from the top; of many rows, every second or fourth is named.

    Names may repeat, so the axis is not a category axis.
    """
    every = 1 if len(names) <= MANY else 2 if len(names) <= 2 * MANY else 4
    return {
        "tickmode": "array",
        "tickvals": list(range(0, len(names), every)),
        "ticktext": list(names[::every]),
        "range": [len(names) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
    }


def step_axis(steps: Sequence[int]) -> dict[str, object]:
    """An axis of whole step numbers; up to FEW_STEPS are all named."""
    few = {"tickmode": "array", "tickvals": list(steps)} if len(steps) <= FEW_STEPS else {}
    return {"title": {"text": "step"}, **few}


def legend_on_the_right() -> dict[str, object]:
    """A legend on the right of the figure, in the order of its traces."""
    return {"orientation": "v", "x": 1.01, "y": 1, "xanchor": "left", "yanchor": "top"}
