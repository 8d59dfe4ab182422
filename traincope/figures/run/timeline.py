"""The timeline: a bar per span in a short window, otherwise an image of each class' share per pixel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.basedatatypes import BaseTraceType

from traincope.figures.drawing.canvas import canvas
from traincope.figures.drawing.labels import label
from traincope.figures.drawing.png import data_address, of_colours, of_palette
from traincope.figures.drawing.templates import TEMPLATES
from traincope.figures.drawing.time_axis import instant, ticks
from traincope.figures.run.arrangement import FULL, Arrangement, Line
from traincope.palette import GREEN, GREY, ORANGE, SEVERE, SKY_BLUE, YELLOW, channels, colour, shade, tint
from traincope.tiles.zoom import Bars, Raster

FILLED = 0.86
"""Share of a line's height that is filled; the rest separates it from the next."""
MAX_SHAPES = 80
FINEST = 10.0
"""Most raster rows per line; they are stretched to its pixels."""
LETTERS, APART = 10, 18
"""Pixels of a line of letters, and between two labels where not all lines are named."""
ABOVE = 1.3
"""Space for markers above the first line, in lines."""

_AS_BEFORE: Mapping[str, Mapping[str, float]] = {"marker": {"opacity": 1.0}}
"""A bar outside the selected stretch: plotly would fade it."""

_OTHERS = {
    "gpu compute": GREEN,
    "gpu communication": ORANGE,
    "gpu memory": tint(YELLOW, 0.6),
    "step": tint(GREY, 0.45),
    "span": tint(SKY_BLUE, 0.3),
    "exposed_wait[pp]": colour("bubble.schedule"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A marker of a fault or event."""

    at_ns: int
    text: str
    severe: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A rank's part in the picked collective."""

    line: int
    start_ns: int
    end_ns: int
    bound_ns: int | None
    """Error bound of its times; None where it is unknown."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Time without records, or with fewer of them, over some lines."""

    first_line: int
    last_line: int
    start_ns: int
    end_ns: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """The content of a window of the timeline."""

    arrangement: Arrangement
    drawn: Raster | Bars
    begin_ns: int
    end_ns: int
    classes: Sequence[str]
    picks: Sequence[str] = ()
    """Address of each bar."""
    hovers: Sequence[str] = ()
    """Hover text of each bar, plain lines."""
    labels: Sequence[str] = ()
    """Label of each bar that has room for it."""
    steps: Sequence[tuple[int, int, int]] = ()
    marks: Sequence[Mark] = ()
    parts: Sequence[Part] = ()
    gaps: Sequence[Gap] = ()
    selected: tuple[int, int] | None = None
    """Begin and end of the selected stretch."""


def class_colour(name: str) -> str:
    """Colour of a class of spans; a ledger term has its own colour."""
    if name.startswith("overlapped["):
        return tint(colour(name.replace("overlapped", "exposed_transfer", 1)), 0.62)
    return _OTHERS.get(name) or colour(name)


def timeline(picture: Picture, *, theme: str = "light") -> go.Figure:
    """Draw the timeline; times on the x axis are ns since the run began."""
    drawn = picture.drawn
    traces = _bars(picture, drawn) if isinstance(drawn, Bars) else []
    along = ticks(picture.begin_ns, picture.end_ns)
    since = "" if not along.since_ns else f", from {instant(along.since_ns, step_ns=1)}"
    shown = [*_gaps(picture), *traces, *_parts(picture), *_marks(picture)]
    return canvas(
        shown or [_nothing(picture)],
        height=picture.arrangement.pixels + 70,
        template=TEMPLATES.get(theme, TEMPLATES["light"]),
        barmode="overlay",
        showlegend=False,
        dragmode="select",
        selectdirection="h",
        selections=[],
        selectionrevision=str(picture.selected),
        xaxis={
            "range": [picture.begin_ns, picture.end_ns],
            "tickvals": list(along.at_ns),
            "ticktext": list(along.texts),
            "title": {"text": f"time since the run began{since}"},
            "showgrid": True,
            "zeroline": False,
        },
        yaxis={**_names(picture.arrangement), "fixedrange": True, "showgrid": False, "zeroline": False},
        images=[_raster(picture, drawn)] if isinstance(drawn, Raster) else [],
        shapes=[*_step_lines(picture), *_fault_lines(picture), *_selection(picture)],
        uirevision="timeline",
    )


def _names(arrangement: Arrangement) -> Mapping[str, object]:
    lines = arrangement.lines
    pixels = max(arrangement.pixels, 1)
    every = 1 if len(lines) * LETTERS <= pixels else -(-len(lines) * APART // pixels)
    named = range(0, len(lines), every)
    name = arrangement.tick if every == 1 else lambda at: arrangement.name(lines[at])
    return {
        "range": [arrangement.height, -ABOVE * arrangement.height / max(arrangement.pixels / 16, 1)],
        "tickvals": [lines[at].top + lines[at].height / 2 for at in named],
        "ticktext": [label(name(at), max_length=32) for at in named],
        "ticks": "",
        "tickfont": {"size": 11},
    }


def _bars(picture: Picture, bars: Bars) -> list[BaseTraceType]:
    """One trace per class."""
    lines = picture.arrangement.lines
    tops = np.array([line.top for line in lines] or [0.0])
    thick = np.array([line.height * FILLED / line.depth for line in lines] or [1.0])
    thickness = thick[bars.line]
    tall = thick * picture.arrangement.pixels / picture.arrangement.height >= LETTERS
    middle = tops[bars.line] + (bars.depth + 0.5) * thickness
    begins = np.maximum(bars.start_ns, picture.begin_ns)  # Keep the label at a bar's begin visible.
    traces = []
    for class_number in np.unique(bars.class_number).tolist():
        members = np.flatnonzero(bars.class_number == class_number)
        fill = class_colour(picture.classes[class_number])
        traces.append(
            go.Bar(
                orientation="h",
                base=begins[members],
                x=bars.end_ns[members] - begins[members],
                y=middle[members],
                width=thickness[members],
                marker={"color": fill, "line": {"width": 0.5, "color": shade(fill, 0.25)}},
                unselected=_AS_BEFORE,
                customdata=_texts([(picture.picks[at], _lines(picture.hovers[at])) for at in members.tolist()]),
                text=_texts(
                    [label(picture.labels[at], max_length=40) if tall[bars.line[at]] else "" for at in members.tolist()]
                ),
                textposition="inside",
                insidetextanchor="start",
                textangle=0,
                constraintext="none",
                cliponaxis=True,
                insidetextfont={"color": "#000000" if _is_light(fill) else "#ffffff", "size": 11},
                hovertemplate="%{customdata[1]}<extra></extra>",
                name=label(picture.classes[class_number]),
            )
        )
    return traces


def _texts(values: Sequence[object]) -> NDArray[np.object_]:
    """Values as an array, because plotly inspects every element of a list several times."""
    return np.array(values, dtype=object)


def _nothing(picture: Picture) -> BaseTraceType:
    """An invisible trace, because plotly draws no axes without a trace."""
    return go.Scatter(x=[picture.begin_ns], y=[0], mode="markers", marker={"opacity": 0}, hoverinfo="skip")


def _lines(text: str) -> str:
    return "<br>".join(label(line, max_length=120) for line in text.split("\n"))


def _is_light(fill: str) -> bool:
    """True for a light colour, by approximate relative luminance (sRGB weights without gamma)."""
    red, green, blue = channels(fill)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 110


def _raster(picture: Picture, raster: Raster) -> Mapping[str, object]:
    """The image of a raster: stacked class colours where lines are tall, otherwise the mean colour.

    It is a layout image, because a heat map is drawn and checked again in the browser, which takes longest.
    """
    units = picture.arrangement.height
    colours = [class_colour(picture.classes[class_number]) for class_number in raster.classes]
    few = len(picture.arrangement.lines) <= FULL
    each = min(max(picture.arrangement.pixels / units, 1.0), FINEST) if few else 1.0
    tall = max(round(units * each), len(picture.arrangement.lines))
    rows = [_pixel_rows(line, units=units, tall=tall) for line in picture.arrangement.lines]
    bins = raster.shares.shape[2]
    if few:
        classes = np.zeros((tall, bins), dtype=np.uint8)
        for (first, last), shares in zip(rows, raster.shares, strict=True):
            classes[first:last] = stacked(shares, rows=last - first)
        source = data_address(of_palette(classes, colours))
    else:
        mixed = np.zeros((tall, bins, 4), dtype=np.uint8)
        for (first, last), means in zip(rows, blended(raster.shares, colours), strict=True):
            mixed[first:last] = means
        source = data_address(of_colours(mixed))
    return {
        "source": source,
        "xref": "x",
        "yref": "y",
        "x": raster.begin_ns,
        "y": 0,
        "sizex": raster.width_ns * bins,
        "sizey": units,
        "sizing": "stretch",
        "layer": "below",
    }


def _pixel_rows(line: Line, *, units: float, tall: int) -> tuple[int, int]:
    """[first, last) of a line's rows of pixels, with a gap below where there is room."""
    first, end = round(line.top / units * tall), round((line.top + line.height) / units * tall)
    return first, max(end - (1 if end - first >= 4 else 0), first + 1)


def stacked(shares: NDArray[np.float32], *, rows: int) -> NDArray[np.uint8]:
    """Array (row, bin) of 1 + class per pixel, 0 for none; `shares` is (class, bin).

    Classes are stacked, each as thick as its share.
    """
    reach = np.cumsum(shares, axis=0)
    levels = (np.arange(rows)[:, None, None] + 0.5) / rows
    below = (reach[None] <= levels).sum(axis=1)
    return np.where(below < len(shares), below + 1, 0).astype(np.uint8)


def blended(shares: NDArray[np.float32], colours: Sequence[str]) -> NDArray[np.uint8]:
    """Array (line, bin, RGBA): the mean colour of the spans, with the covered share as opacity."""
    inks = np.array([list(bytes.fromhex(text.removeprefix("#"))) for text in colours], dtype=np.float32).reshape(-1, 3)
    whole = shares.sum(axis=1)
    mixed = (shares.transpose(0, 2, 1) @ inks) / np.maximum(whole, 1e-9)[:, :, None]
    return np.concatenate([mixed, 255 * np.minimum(whole, 1.0)[:, :, None]], axis=2).round().astype(np.uint8)


def _step_lines(picture: Picture) -> list[Mapping[str, object]]:
    """Lines at the begin of steps, if they are few."""
    begins = [start for _, start, _ in picture.steps if picture.begin_ns < start < picture.end_ns]
    if len(begins) > MAX_SHAPES:
        return []
    return [_upright(begin, {"color": GREY, "width": 0.7, "dash": "dot"}) for begin in begins]


def _fault_lines(picture: Picture) -> list[Mapping[str, object]]:
    severe = [mark.at_ns for mark in picture.marks if mark.severe]
    return [_upright(at, {"color": SEVERE, "width": 1.2}) for at in severe[:MAX_SHAPES]]


def _upright(at_ns: int, line: Mapping[str, object]) -> Mapping[str, object]:
    return {"type": "line", "x0": at_ns, "x1": at_ns, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _selection(picture: Picture) -> list[Mapping[str, object]]:
    if picture.selected is None:
        return []
    begin, end = picture.selected
    band = {"type": "rect", "x0": begin, "x1": end, "yref": "paper", "y0": 0, "y1": 1}
    return [{**band, "fillcolor": SKY_BLUE, "opacity": 0.18, "line": {"color": SKY_BLUE, "width": 1.5}}]


def _gaps(picture: Picture) -> list[BaseTraceType]:
    """Hatching over time without records."""
    gaps, lines = picture.gaps, picture.arrangement.lines
    if not gaps:
        return []
    tops = [lines[gap.first_line].top for gap in gaps]
    heights = [
        lines[gap.last_line].top + lines[gap.last_line].height - top for gap, top in zip(gaps, tops, strict=True)
    ]
    return [
        go.Bar(
            orientation="h",
            base=[gap.start_ns for gap in gaps],
            x=[gap.end_ns - gap.start_ns for gap in gaps],
            y=[top + height / 2 for top, height in zip(tops, heights, strict=True)],
            width=heights,
            marker={
                "color": "rgba(0,0,0,0)",
                "line": {"width": 0},
                "pattern": {"shape": "/", "fgcolor": GREY, "size": 9, "solidity": 0.12},
            },
            unselected=_AS_BEFORE,
            customdata=_texts([("", _lines(gap.text)) for gap in gaps]),
            hovertemplate="%{customdata[1]}<extra></extra>",
        )
    ]


def _marks(picture: Picture) -> list[BaseTraceType]:
    """Markers of faults and events above the first line."""
    shown = [mark for mark in picture.marks if picture.begin_ns <= mark.at_ns <= picture.end_ns]
    if not shown:
        return []
    above = -0.6 * ABOVE * picture.arrangement.height / max(picture.arrangement.pixels / 16, 1)
    return [
        go.Scatter(
            x=[mark.at_ns for mark in shown],
            y=[above] * len(shown),
            mode="markers",
            marker={
                "symbol": ["triangle-down" if mark.severe else "diamond" for mark in shown],
                "color": [SEVERE if mark.severe else SKY_BLUE for mark in shown],
                "size": 11,
            },
            unselected=_AS_BEFORE,
            customdata=[["", _lines(mark.text)] for mark in shown],
            hovertemplate="%{customdata[1]}<extra></extra>",
            cliponaxis=False,
        )
    ]


def _parts(picture: Picture) -> list[BaseTraceType]:
    """Begins and ends of the picked collective, with clock error bars, joined from rank to rank."""
    if not picture.parts:
        return []
    lines = picture.arrangement.lines
    parts = sorted(picture.parts, key=lambda part: part.line)
    middle = [lines[part.line].top + lines[part.line].height / 2 for part in parts]
    bounds = [part.bound_ns or 0 for part in parts]
    return [
        go.Scatter(
            x=[getattr(part, side) for part in parts],
            y=middle,
            mode="lines+markers",
            line={"color": ink, "width": 1.5, "dash": "dot"},
            marker={"size": 6, "color": ink, "symbol": symbol},
            error_x={
                "type": "data",
                "array": bounds,
                "thickness": 1.5,
                "width": 4,
                "color": ink,
                "visible": any(bounds),
            },
            customdata=[["", _lines(part.text)] for part in parts],
            hovertemplate="%{customdata[1]}<extra></extra>",
        )
        for side, symbol, ink in (("start_ns", "line-ns-open", "#0072B2"), ("end_ns", "line-ns-open", "#D55E00"))
    ]
