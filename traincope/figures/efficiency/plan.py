"""Predicted memory of each pipeline rank, and the predicted time of a step."""

import plotly.graph_objects as go

from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.palette import BLUE, GREEN, ORANGE, PURPLE, SEVERE, YELLOW, colour
from traincope.plan.layout.prediction import Prediction
from traincope.units import duration, size

MAX_ROWS = 32
GIB = 1 << 30


def plan_memory(prediction: Prediction, *, memory_bytes: int) -> go.Figure:
    """Memory of each pipeline rank by part, with a line at the memory of a GPU."""
    shown = prediction.memory[:MAX_ROWS]
    parts = {
        "weights": (BLUE, [rank.states.weights for rank in shown]),
        "gradients": (ORANGE, [rank.states.gradients for rank in shown]),
        "optimizer": (PURPLE, [rank.states.optimizer for rank in shown]),
        "activations": (GREEN, [rank.activations for rank in shown]),
        "temporary": (YELLOW, [rank.temporary for rank in shown]),
    }
    traces = [
        go.Bar(
            name=name,
            orientation="h",
            y=list(range(len(shown))),
            x=[held / GIB for held in values],
            marker={"color": paint},
            customdata=[size(held) for held in values],
            hovertemplate=f"{name} %{{customdata}}<extra></extra>",
        )
        for name, (paint, values) in parts.items()
    ]
    limit = {"type": "line", "x0": memory_bytes / GIB, "x1": memory_bytes / GIB, "yref": "paper", "y0": 0, "y1": 1}
    return canvas(
        traces,
        height=height_of(len(shown)),
        barmode="stack",
        xaxis={"title": {"text": "GiB; dashed line: memory of one GPU"}, "rangemode": "tozero"},
        yaxis=named_rows([f"pipeline rank {rank.rank}" for rank in shown]),
        shapes=[{**limit, "line": {"color": SEVERE, "width": 2, "dash": "dash"}}],
    )


def plan_step(prediction: Prediction) -> go.Figure:
    """Seconds of a step: compute, bubble, and each axis' communication without overlap."""
    idle = prediction.compute_seconds * prediction.bubble_ratio
    parts = {"compute": prediction.compute_seconds - idle, "bubble": idle, **prediction.axis_seconds}
    paints = {"compute": colour("forward"), "bubble": colour("bubble.schedule")}
    traces = [
        go.Bar(
            name=name,
            orientation="h",
            y=[0],
            x=[seconds],
            marker={"color": paints.get(name) or colour(f"exposed_transfer[{name}]")},
            customdata=[duration(seconds * 1e9)],
            hovertemplate=f"{name} %{{customdata}}<extra></extra>",
        )
        for name, seconds in parts.items()
        if seconds
    ]
    return canvas(
        traces,
        height=height_of(1),
        barmode="stack",
        xaxis={"title": {"text": "s, without overlap of communication and compute"}},
        yaxis=named_rows(["step"]),
    )
