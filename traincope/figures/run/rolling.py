"""Rolling goodput of a job."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traincope.analysis.reliability.rolling import HOUR_NS, Rolling
from traincope.figures.drawing.canvas import canvas
from traincope.figures.drawing.clock import clock
from traincope.palette import BLUE, GREEN


def rolling_goodput(windows: Sequence[Rolling], of: str = "productive") -> go.Figure:
    """Percent of the time before each instant, one line per window. Needs at least one window.

    `of`: name of the share; a logbook knows the time in runs only.
    """
    began_ns = min(window.ends_ns[0] - window.window_ns for window in windows)
    on = clock(began_ns, max(window.ends_ns[-1] for window in windows))
    lines = []
    for window, colour in zip(windows, (BLUE, GREEN), strict=False):
        name = f"last {window.window_ns // HOUR_NS} h"
        lines.append(
            go.Scatter(
                name=name,
                x=[on.at(end_ns) for end_ns in window.ends_ns],
                y=[100 * ratio for ratio in window.ratios],
                mode="lines+markers" if len(window.ends_ns) == 1 else "lines",
                line={"color": colour, "width": 2},
                hovertemplate=f"{name}: %{{y:.1f}} %<extra></extra>",
            )
        )
    return canvas(
        lines,
        height=240,
        xaxis={"title": {"text": f"{on.unit} since the job began"}, "rangemode": "tozero"},
        yaxis={"title": {"text": f"{of}, %"}, "range": [0, 100]},
    )
