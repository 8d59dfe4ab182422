"""Waterfall of step time: one bar per term, from 100 % down to MFU, or to forward and backward."""

from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from traincope.figures.drawing.canvas import canvas, height_of, named_rows
from traincope.figures.drawing.labels import label
from traincope.palette import GREY, colour
from traincope.units import duration, milliseconds, share

MIN_RATIO = 0.0005
"""Share of a step below which a term is not drawn."""
AT_WORK = ("forward", "backward")
"""Terms that remain at the bottom where peak is unknown."""
IDEAL = "ideal"
WRITTEN = 56
"""Pixels to the right of the longest bar for its share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    name: str
    term: str | None
    """Name of the term in the ledger; None for the first bar."""
    begin: float
    ratio: float
    colour: str


def waterfall(shares: Mapping[str, float | None], step_ns: float) -> go.Figure:
    """Draw `shares` of step time, which sum to 1 (`Ratios.waterfall` or the ledger's); `step_ns` is the mean step.

    With the share `ideal` the last bar is MFU, otherwise forward and backward. The last element of a bar's
    `customdata` is its unescaped term (None for the first bar); templates never use it.
    """
    bars = _bars({term: ratio for term, ratio in shares.items() if ratio and abs(ratio) >= MIN_RATIO})
    lengths = [share(bar.ratio) for bar in bars]
    trace = go.Bar(
        orientation="h",
        y=list(range(len(bars))),
        x=[bar.ratio for bar in bars],
        base=[bar.begin for bar in bars],
        marker={"color": [bar.colour for bar in bars]},
        text=lengths,
        textposition="outside",
        cliponaxis=False,
        customdata=[
            [bar.name, length, milliseconds(bar.ratio * step_ns), bar.term]
            for bar, length in zip(bars, lengths, strict=True)
        ],
        hovertemplate="%{customdata[0]}<br>%{customdata[1]} of step time, %{customdata[2]} ms per step<extra></extra>",
    )
    return canvas(
        [trace],
        height=height_of(len(bars)) - 30,
        margin={"l": 8, "r": WRITTEN, "t": 8, "b": 8},
        showlegend=False,
        bargap=0.25,
        xaxis={
            "tickformat": ".0%",
            "range": [0, 1],
            "title": {"text": f"share of the mean step, {duration(step_ns)}"},
        },
        yaxis=named_rows([bar.name for bar in bars]),
    )


def _bars(shares: Mapping[str, float]) -> list[_Bar]:
    whole = "peak" if IDEAL in shares else "step"
    productive = {IDEAL} if IDEAL in shares else set(AT_WORK)
    bars, remaining = [_Bar(name=whole, term=None, begin=0.0, ratio=1.0, colour=GREY)], 1.0
    losses = {term: ratio for term, ratio in shares.items() if term not in productive}
    for term, ratio in losses.items():
        remaining -= ratio
        bars.append(_Bar(name=label(term), term=term, begin=remaining, ratio=ratio, colour=colour(term)))
    begin = 0.0
    for term, ratio in shares.items():
        if term in productive:
            name = "MFU" if term == IDEAL else term
            bars.append(_Bar(name=name, term=term, begin=begin, ratio=ratio, colour=colour(term)))
            begin += ratio
    return bars
