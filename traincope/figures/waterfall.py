"""From all of a step, or of peak, to what the model's mathematics took: one bar a loss, where the last one ended."""

from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from traincope.figures.canvas import canvas, height_of, named_rows
from traincope.figures.labels import label
from traincope.palette import GREY, colour
from traincope.units import milliseconds, share

LEAST = 0.0005
"""Share of a step below which a term is no bar: it would be no pixel either."""
AT_WORK = ("forward", "backward")
"""What is left of a step where nothing is known of peak."""
IDEAL = "ideal"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    name: str
    term: str | None
    """As the ledger has it; None: the whole."""
    begin: float
    ratio: float
    colour: str


def waterfall(shares: Mapping[str, float | None], *, step_ns: float) -> go.Figure:
    """`shares` of step time sum to 1, as `Ratios.waterfall` or those of the ledger; `step_ns` is the mean step.

    With `ideal` among them the last bar is MFU; without, what forward and backward took. The last of a bar's
    `customdata` is its term as it is, None for the first: never in a template.
    """
    bars = _bars({term: ratio for term, ratio in shares.items() if ratio and abs(ratio) >= LEAST})
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
        hovertemplate="%{customdata[0]}<br>%{customdata[1]} of a step, %{customdata[2]} ms<extra></extra>",
    )
    return canvas(
        [trace],
        height=height_of(len(bars)) - 30,
        showlegend=False,
        bargap=0.25,
        xaxis={"tickformat": ".0%", "range": [0, 1.09], "title": {"text": "share of step time"}},
        yaxis=named_rows([bar.name for bar in bars]),
    )


def _bars(shares: Mapping[str, float]) -> list[_Bar]:
    whole = "peak" if IDEAL in shares else "step"
    kept = {IDEAL} if IDEAL in shares else set(AT_WORK)
    bars, left = [_Bar(name=whole, term=None, begin=0.0, ratio=1.0, colour=GREY)], 1.0
    losses = {term: ratio for term, ratio in shares.items() if term not in kept}
    for term, ratio in losses.items():
        left -= ratio
        bars.append(_Bar(name=label(term), term=term, begin=left, ratio=ratio, colour=colour(term)))
    begin = 0.0
    for term, ratio in shares.items():
        if term in kept:
            name = "MFU" if term == IDEAL else term
            bars.append(_Bar(name=name, term=term, begin=begin, ratio=ratio, colour=colour(term)))
            begin += ratio
    return bars
