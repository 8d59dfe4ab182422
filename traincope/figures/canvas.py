"""The frame that all figures share: margins, legend, no title, light until told otherwise."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.basedatatypes import BaseTraceType

from traincope.figures.templates import LIGHT

HEIGHT = 320
"""Pixels, of a figure whose data do not say."""
ROW, THIN, LINE, AROUND = 22, 12, 20, 90
"""Pixels of a row of bars, of one of many, of a line of a legend, and of axes and legend around them all."""
FEW_STEPS = 12
MANY = 30
"""Rows from which on they are thin, and only some are named."""


def canvas(traces: Sequence[BaseTraceType], *, height: int = HEIGHT, **layout: object) -> go.Figure:
    """A figure of these traces; `layout` as plotly has it."""
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

    `between` is what lies between two, as a share of the whole.
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


def height_of(rows: int, *, beside: int = 2) -> int:
    """Pixels that so many rows of bars need, and so many lines of a legend beside them; many rows are thin.

    In less than two lines an axis's title would lie on its numbers.
    """
    return max(rows * (ROW if rows <= MANY else THIN), max(beside, 2) * LINE) + AROUND


def named_rows(names: Sequence[str]) -> dict[str, object]:
    """An upright axis of rows 0, 1, ... from above, named beside, every second or fourth where they are many.

    Names may repeat, so they are no categories.
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
    """An axis of step numbers, which are whole: a few are all named."""
    few = {"tickmode": "array", "tickvals": list(steps)} if len(steps) <= FEW_STEPS else {}
    return {"title": {"text": "step"}, **few}


def beside() -> dict[str, object]:
    """A legend right of the figure, in the order of its traces."""
    return {"orientation": "v", "x": 1.01, "y": 1, "xanchor": "left", "yanchor": "top"}
