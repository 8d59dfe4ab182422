"""Plotly templates for light and dark pages: fonts, grid and hover boxes."""

from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from traincope.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY_BLUE, VERMILLION, YELLOW

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
CLEAR = "rgba(0,0,0,0)"
"""Transparent, so the page's background shows."""
UPRIGHT = {"ticklabeloverflow": "allow"}
"""Setting of vertical axes: their margins hold all labels, and plotly need not measure each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ink:
    text: str
    soft: str
    """Colour of axis titles and ticks."""
    grid: str
    paper: str
    """Background of hover boxes."""


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
