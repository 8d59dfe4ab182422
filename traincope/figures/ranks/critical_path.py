"""The critical path of a step: a row per rank, a box per term, and lines from rank to rank."""

from collections.abc import Iterator

import plotly.graph_objects as go

from traincope.analysis import StepPath
from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.figures.drawing.labels import label
from traincope.palette import GREY, colour
from traincope.units import duration

MS = 1e6


def critical_path_step(step: StepPath) -> go.Figure:
    """The path of a step; its clock starts when the last rank begins the step."""
    ranks = sorted({segment.rank for segment in step.segments})
    return canvas(
        [*_boxes(step, ranks), _course(step, ranks)],
        height=height_of(len(ranks), legend_lines=len({segment.term for segment in step.segments})),
        barmode="overlay",
        xaxis={"title": {"text": "ms since the last rank began the step"}, "zeroline": False},
        yaxis=named_rows([f"rank {rank}" for rank in ranks]),
    )


def _boxes(step: StepPath, ranks: list[int]) -> Iterator[go.Bar]:
    for term in dict.fromkeys(segment.term for segment in step.segments):
        segments = [segment for segment in step.segments if segment.term == term]
        yield go.Bar(
            name=label(term),
            orientation="h",
            base=[(segment.start_ns - step.start_ns) / MS for segment in segments],
            x=[segment.length_ns / MS for segment in segments],
            y=[ranks.index(segment.rank) for segment in segments],
            marker={"color": colour(term), "line": {"width": 0}},
            customdata=[[f"rank {segment.rank}", duration(segment.length_ns)] for segment in segments],
            hovertemplate="%{customdata[0]}<br>%{fullData.name} %{customdata[1]}<extra></extra>",
        )


def _course(step: StepPath, ranks: list[int]) -> go.Scatter:
    """Lines that follow the path from rank to rank."""
    instants = [(segment.start_ns - step.start_ns) / MS for segment in step.segments]
    rows = [ranks.index(segment.rank) for segment in step.segments]
    return go.Scatter(
        x=instants,
        y=rows,
        mode="lines",
        line={"color": GREY, "width": 1, "shape": "hv"},
        showlegend=False,
        hoverinfo="skip",
    )
