"""Figures as JSON, and the script that draws them: for a page that asks no network."""

import json
from collections.abc import Mapping
from typing import TypeAlias

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.utils import PlotlyJSONEncoder

from traincope.figures.templates import TEMPLATES

Figure: TypeAlias = go.Figure


def figure_json(figure: Figure) -> str:
    """Data and layout without its template, which a page has once; what is no number is null, arrays are base64."""
    drawn = figure.to_dict()
    drawn["layout"].pop("template", None)
    return _json(drawn)


def templates_json() -> str:
    """Light and dark, by name."""
    return _json({name: template.to_plotly_json() for name, template in TEMPLATES.items()})


def script() -> str:
    """All of plotly.js, 5 MB."""
    source: str = get_plotlyjs()
    return source


def _json(content: Mapping[str, object]) -> str:
    return json.dumps(content, cls=PlotlyJSONEncoder, separators=(",", ":"))
