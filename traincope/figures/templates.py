"""How a figure looks beside its data: letters, grid and hover boxes, on light paper and on dark."""

from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from traincope.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILLION, YELLOW

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
CLEAR = "rgba(0,0,0,0)"
"""Paper is the page's own."""
UPRIGHT = {"ticklabeloverflow": "allow"}
"""Beside an upright axis margins hold all labels; to look for others plotly measures each as often as there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ink:
    text: str
    soft: str
    """Of axis titles and ticks."""
    grid: str
    paper: str
    """Of hover boxes."""


def _template(ink: _Ink) -> go.layout.Template:
    axis = {
        "gridcolor": ink.grid,
        "zerolinecolor": ink.grid,
        "linecolor": ink.grid,
        "tickfont": {"color": ink.soft},
        "title": {"font": {"color": ink.soft, "size": 12}},
        "automargin": True,
    }
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 12, "color": ink.text},
            "paper_bgcolor": CLEAR,
            "plot_bgcolor": CLEAR,
            "colorway": [BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY_BLUE, YELLOW, GREY],
            "xaxis": axis,
            "yaxis": axis | UPRIGHT,
            "legend": {"font": {"color": ink.text}},
            "hoverlabel": {
                "bgcolor": ink.paper,
                "bordercolor": ink.grid,
                "font": {"family": FONT, "size": 12, "color": ink.text},
                "align": "left",
            },
            "modebar": {"bgcolor": CLEAR, "color": ink.soft, "activecolor": ink.text},
        }
    )


LIGHT = _template(_Ink(text="#1b1f24", soft="#59636e", grid="#e3e7eb", paper="#ffffff"))
DARK = _template(_Ink(text="#e6edf3", soft="#9aa7b4", grid="#2e3742", paper="#161b22"))
TEMPLATES: Mapping[str, go.layout.Template] = {"light": LIGHT, "dark": DARK}
