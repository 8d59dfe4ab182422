"""Shares of the classes of kernels in kernel time."""

import plotly.graph_objects as go

from traincope.analysis import Kernels
from traincope.analysis.kernels.kernel_classes import Family
from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.figures.drawing.labels import label
from traincope.palette import GREEN, GREY, ORANGE, YELLOW
from traincope.units import count, duration, share

COLOURS = {
    Family.COMPUTE: GREEN,
    Family.COMMUNICATION: ORANGE,
    Family.HOST: YELLOW,
    Family.UNKNOWN: GREY,
}


def kernel_classes(kernels: Kernels) -> go.Figure:
    """Shares of kernel time, largest class first; kernels that overlap in time count separately."""
    whole = max(kernels.total_ns, 1)
    names = [label(group.name) for group in kernels.classes]
    trace = go.Bar(
        orientation="h",
        y=list(range(len(names))),
        x=[group.total_ns / whole for group in kernels.classes],
        marker={"color": [COLOURS[group.family] for group in kernels.classes]},
        text=[share(group.total_ns / whole) for group in kernels.classes],
        textposition="outside",
        cliponaxis=False,
        customdata=[
            [name, duration(group.total_ns), count(group.count)]
            for name, group in zip(names, kernels.classes, strict=True)
        ],
        hovertemplate="%{customdata[0]}: %{text}<br>%{customdata[1]} in %{customdata[2]} kernels<extra></extra>",
    )
    return canvas(
        [trace],
        height=height_of(len(names)) - 30,
        showlegend=False,
        bargap=0.25,
        xaxis={"tickformat": ".0%", "rangemode": "tozero", "title": {"text": "share of kernel time"}},
        yaxis=named_rows(names),
    )
