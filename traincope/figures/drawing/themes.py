"""Figures in the theme of their page."""

from typing import TypeAlias

import plotly.graph_objects as go

from traincope.figures.drawing.templates import TEMPLATES

Figure: TypeAlias = go.Figure
"""The type of every figure in this package."""
HEIGHT = 320


def on_paper(figure: Figure, theme: str) -> Figure:
    """A copy of the figure in the theme `light` or `dark`; any other word means light."""
    return go.Figure(figure).update_layout(template=TEMPLATES.get(theme, TEMPLATES["light"]))


def pixels(figure: Figure) -> int:
    """Height of a figure."""
    return int(figure.layout.height or HEIGHT)
