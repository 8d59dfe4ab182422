"""Which classes of kernels took the time of the traces."""

import plotly.graph_objects as go

from traincope.analysis import Kernels
from traincope.analysis.kernel_classes import Family
from traincope.figures.canvas import canvas, height_of, named_rows
from traincope.figures.labels import label
from traincope.palette import GREEN, GREY, ORANGE, YELLOW
from traincope.units import count, duration, share

COLOURS = {
    Family.COMPUTE: GREEN,
    Family.COMMUNICATION: ORANGE,
    Family.HOST: YELLOW,
    Family.UNKNOWN: GREY,
}


def kernel_classes(kernels: Kernels) -> go.Figure:
    """Share of all kernels' time, the largest class first; those that ran at the same time count each."""
    whole = max(kernels.total_ns, 1)
    names = [label(one.name) for one in kernels.classes]
    trace = go.Bar(
        orientation="h",
        y=list(range(len(names))),
        x=[one.total_ns / whole for one in kernels.classes],
        marker={"color": [COLOURS[one.family] for one in kernels.classes]},
        text=[share(one.total_ns / whole) for one in kernels.classes],
        textposition="outside",
        cliponaxis=False,
        customdata=[
            [name, duration(one.total_ns), count(one.count)] for name, one in zip(names, kernels.classes, strict=True)
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
