"""A figure on the paper of its page."""

from typing import TypeAlias

import plotly.graph_objects as go

from traincope.figures.templates import TEMPLATES

Figure: TypeAlias = go.Figure
"""What every figure of this package is."""
HEIGHT = 320


def on_paper(figure: Figure, theme: str) -> Figure:
    """A copy for `light` or `dark` paper; light for any other word."""
    return go.Figure(figure).update_layout(template=TEMPLATES.get(theme, TEMPLATES["light"]))


def pixels(figure: Figure) -> int:
    """Its height."""
    return int(figure.layout.height or HEIGHT)
