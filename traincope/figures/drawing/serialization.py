"""Figures as JSON, and the plotly script, for a page that works offline."""

import json
from collections.abc import Mapping
from typing import TypeAlias

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from plotly.utils import PlotlyJSONEncoder

from traincope.figures.drawing.templates import TEMPLATES

Figure: TypeAlias = go.Figure


def figure_json(figure: Figure) -> str:
    """Data and layout without the template, which a page holds once; NaN becomes null, arrays base64."""
    drawn = figure.to_dict()
    drawn["layout"].pop("template", None)
    return _json(drawn)


def templates_json() -> str:
    """The light and dark templates by name."""
    return _json({name: template.to_plotly_json() for name, template in TEMPLATES.items()})


def script() -> str:
    """The complete plotly.js script, 5 MB."""
    source: str = get_plotlyjs()
    return source


def _json(content: Mapping[str, object]) -> str:
    return json.dumps(content, cls=PlotlyJSONEncoder, separators=(",", ":"))
