"""Shares of each traced GPU's time from its first event to its last, a row per GPU."""

from collections.abc import Sequence

import plotly.graph_objects as go

from traincope.analysis import GpuPartition
from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.figures.drawing.labels import label
from traincope.palette import GREY, ORANGE, colour, tint
from traincope.units import duration, share

MAX_GPUS = 64
"""GPUs in the figure: those with the smallest share of compute."""
COLOURS = {
    "compute": colour("forward"),
    "exposed communication": ORANGE,
    "exposed memory": colour("exposed_memory"),
    "idle": tint(GREY, 0.35),
}


def gpu_shares(partitions: Sequence[GpuPartition]) -> go.Figure:
    """A stacked bar per GPU: compute, exposed communication, exposed memory, idle."""
    idlest = sorted(partitions, key=lambda gpu: _ratio(gpu.compute_ns, gpu) or 0.0)[:MAX_GPUS]
    shown = [gpu for gpu in partitions if gpu in idlest]
    names = [f"rank {gpu.rank}, GPU {label(gpu.device, max_length=12)}" for gpu in shown]
    traces = [
        go.Bar(
            name=part,
            orientation="h",
            y=list(range(len(shown))),
            x=[_ratio(_ns(gpu, part), gpu) for gpu in shown],
            marker={"color": paint},
            customdata=[
                [name, share(_ratio(_ns(gpu, part), gpu)), duration(_ns(gpu, part))]
                for name, gpu in zip(names, shown, strict=True)
            ],
            hovertemplate="%{customdata[0]}<br>%{fullData.name} %{customdata[1]}, %{customdata[2]}<extra></extra>",
        )
        for part, paint in COLOURS.items()
    ]
    return canvas(
        traces,
        height=height_of(len(shown)),
        barmode="stack",
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        bargap=0.2,
        xaxis={"tickformat": ".0%", "range": [0, 1]},
        yaxis=named_rows(names),
    )


def _ns(gpu: GpuPartition, part: str) -> int:
    return {
        "compute": gpu.compute_ns,
        "exposed communication": gpu.exposed_communication_ns,
        "exposed memory": gpu.exposed_memory_ns,
        "idle": gpu.idle_ns,
    }[part]


def _ratio(ns: int, gpu: GpuPartition) -> float | None:
    return ns / gpu.span_ns if gpu.span_ns else None
