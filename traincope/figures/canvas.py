"""The frame that all figures share: margins, legend, no title, light until told otherwise."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.basedatatypes import BaseTraceType

from traincope.figures.templates import LIGHT

HEIGHT = 320
"""Pixels, of a figure whose data do not say."""
ROW, AROUND = 22, 90
"""Pixels of a row of bars, and of axes and legend around them all."""


def canvas(traces: Sequence[BaseTraceType], *, height: int = HEIGHT, **layout: object) -> go.Figure:
    """A figure of these traces; `layout` as plotly has it."""
    framed: Mapping[str, object] = {
        "template": LIGHT,
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 8},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "xanchor": "left"},
        "hovermode": "closest",
        **layout,
    }
    return go.Figure(data=list(traces), layout=framed)


def height_of(rows: int, *, least: int = 2) -> int:
    """Pixels that so many rows of bars need."""
    return max(rows, least) * ROW + AROUND
