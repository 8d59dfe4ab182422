"""Layouts of a search: their memory and step by part, the roofline of the model's products, and all-reduces by size."""

from collections.abc import Mapping, Sequence
from math import log10

import plotly.graph_objects as go

from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SEVERE, SKY_BLUE, VERMILLION, YELLOW, colour
from traincope.plan.search.answer import Answer, Operator, Ranked, axes
from traincope.plan.search.collectives import Curve
from traincope.plan.search.explanation import BUBBLE, COPIES, ENDS, HOST, KERNELS, LAUNCHES, OPTIMIZER, OTHER, RECOMPUTE
from traincope.units import duration, flops, size

GIB = 1 << 30
SECOND_NS = 1e9
MEMORY = {"weights": BLUE, "gradients": ORANGE, "optimizer": PURPLE, "activations": GREEN, "temporary": YELLOW}
STEP = {
    KERNELS: colour("forward"),
    RECOMPUTE: colour("recompute"),
    OTHER: colour("other_compute"),
    BUBBLE: colour("bubble.schedule"),
    LAUNCHES: colour("launch_gap"),
    ENDS: colour("bubble.imbalance"),
    COPIES: colour("exposed_memory"),
    OPTIMIZER: colour("optimizer"),
    HOST: colour("unattributed"),
}
TIERS = {"domain": GREEN, "rail": BLUE, "spine": VERMILLION}
EXPOSED = "exposed "
SIZE_TICKS = {1 << 10: "1 KiB", 1 << 15: "32 KiB", 1 << 20: "1 MiB", 1 << 25: "32 MiB", 1 << 30: "1 GiB"}
TIME_TICKS = {
    **{10.0**power: f"{10 ** (power + 6)} us" for power in range(-6, -3)},
    **{10.0**power: f"{10 ** (power + 3)} ms" for power in range(-3, 0)},
    **{10.0**power: f"{10**power} s" for power in range(4)},
}
AROUND = 2.0
"""Factor of intensity left and right of the operators."""
HEIGHT = 340
LEGEND = 120
"""Pixels of a legend above few bars, on a telephone too."""
MARKS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY_BLUE, YELLOW, GREY)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "hexagon")


def named(place: int, ranked: Ranked) -> str:
    """A layout's place and axes."""
    return f"{place}: {axes(ranked)}"


def layouts_memory(layouts: Mapping[int, Ranked], *, usable_bytes: int) -> go.Figure:
    """Memory of the fullest rank of each layout, with a line at what a layout may fill. `layouts`: place -> layout."""
    held = {part: [ranked["memory"][part] for ranked in layouts.values()] for part in MEMORY}  # type: ignore[literal-required]
    traces = [
        _bar(part, MEMORY[part], [each / GIB for each in values], list(map(size, values)))
        for part, values in held.items()
    ]
    limit = usable_bytes / GIB
    line = {"type": "line", "x0": limit, "x1": limit, "yref": "paper", "y0": 0, "y1": 1}
    figure = _stacked(traces, layouts, title="GiB of the fullest rank; dashed line: memory that a layout may fill")
    return figure.update_layout(shapes=[{**line, "line": {"color": SEVERE, "width": 2, "dash": "dash"}}])


def layouts_step(layouts: Mapping[int, Ranked]) -> go.Figure:
    """Expected step of each layout by part. `layouts`: place -> layout."""
    parts = dict.fromkeys(part for ranked in layouts.values() for part in ranked["parts"])
    traces = []
    for part in parts:
        seconds = [ranked["parts"].get(part, 0.0) for ranked in layouts.values()]
        paint = STEP.get(part) or colour(f"exposed_transfer[{part.removeprefix(EXPOSED)}]")
        if any(seconds):
            traces.append(_bar(part, paint, seconds, [duration(each * SECOND_NS) for each in seconds]))
    return _stacked(traces, layouts, title="s per step, expected")


def _bar(name: str, paint: str, values: Sequence[float], texts: Sequence[str]) -> go.Bar:
    return go.Bar(
        name=name,
        orientation="h",
        y=list(range(len(values))),
        x=list(values),
        marker={"color": paint},
        customdata=list(texts),
        hovertemplate=f"{name} %{{customdata}}<extra></extra>",
    )


def _stacked(traces: Sequence[go.Bar], layouts: Mapping[int, Ranked], *, title: str) -> go.Figure:
    names = [named(place, ranked) for place, ranked in layouts.items()]
    return canvas(
        traces,
        height=height_of(len(layouts)) + LEGEND,
        barmode="stack",
        bargap=0.25,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        xaxis={"title": {"text": title}, "rangemode": "tozero"},
        yaxis=named_rows(names),
    )


def roofline(answer: Answer, ranked: Ranked) -> go.Figure:
    """FLOP/s that each operator can reach at most, over its FLOPs per byte, below the device's two limits."""
    peak, memory = answer["peak_flops"], answer["memory_bytes_per_second"]
    operators = [each for each in ranked["operators"] if each["flops"]]
    ridge = peak if memory is None else peak / memory
    near = [each["intensity"] for each in operators] + ([] if memory is None else [ridge])
    low, high = min(near) / AROUND, max(near) * AROUND
    limits = [] if memory is None else [_limits(low, ridge, high, peak=peak, memory=memory)]
    floor = peak if memory is None else min(peak, low * memory)
    return canvas(
        [*limits, *(_operator(number, each) for number, each in enumerate(operators))],
        height=HEIGHT,
        xaxis={
            "type": "log",
            "title": {"text": "FLOPs per byte"},
            "range": [log10(low), log10(high)],
            **_ticks({step * 10**power: f"{step * 10**power:,}" for power in range(6) for step in (1, 2, 5)}),
        },
        yaxis={
            "type": "log",
            "range": [log10(floor), log10(peak * 1.3)],
            **_ticks({peak * part: flops(peak * part, "FLOP/s") for part in (1.0, 0.5, 0.2, 0.1, 0.05)}),
        },
    )


def _limits(low: float, ridge: float, high: float, *, peak: float, memory: float) -> go.Scatter:
    return go.Scatter(
        x=[low, ridge, high],
        y=[low * memory, peak, peak],
        mode="lines",
        line={"color": GREY, "width": 2},
        hoverinfo="skip",
        showlegend=False,
    )


def _operator(number: int, operator: Operator) -> go.Scatter:
    times = (duration(operator[name] * SECOND_NS) for name in ("least_seconds", "forward_seconds"))
    texts = flops(operator["flops"]), size(operator["moved_bytes"]), *times
    return go.Scatter(
        name=operator["name"],
        x=[operator["intensity"]],
        y=[operator["flops"] / operator["least_seconds"]],
        mode="markers",
        marker={"color": MARKS[number % len(MARKS)], "symbol": SYMBOLS[number % len(SYMBOLS)], "size": 11},
        customdata=[texts],
        hovertemplate="%{customdata[0]}, %{customdata[1]}: at least %{customdata[2]}, %{customdata[3]} "
        "expected<extra>%{fullData.name}</extra>",
    )


def collective_times(curves: Sequence[Curve]) -> go.Figure:
    """Time of an all-reduce over the message's size, for each tier of links; tree dashed."""
    traces = [
        go.Scatter(
            name=f"{curve['tier']}, {curve['ranks']:,} ranks, {algorithm}",
            x=curve["num_bytes"],
            y=seconds,
            mode="lines",
            line={"color": TIERS[curve["tier"]], "width": 2, "dash": dash},
            customdata=[
                [size(num_bytes), duration(each * SECOND_NS)]
                for num_bytes, each in zip(curve["num_bytes"], seconds, strict=True)
            ],
            hovertemplate="%{customdata[0]}: %{customdata[1]}<extra>%{fullData.name}</extra>",
        )
        for curve in curves
        for algorithm, seconds, dash in (
            ("ring", curve["ring_seconds"], "solid"),
            ("tree", curve["tree_seconds"], "dash"),
        )
    ]
    return canvas(
        traces,
        height=HEIGHT,
        xaxis={"type": "log", "title": {"text": "message"}, **_ticks(SIZE_TICKS)},
        yaxis={"type": "log", **_ticks(TIME_TICKS)},
    )


def _ticks(texts: Mapping[int, str] | Mapping[float, str] | Mapping[int | float, str]) -> Mapping[str, object]:
    return {"tickmode": "array", "tickvals": list(texts), "ticktext": list(texts.values())}
