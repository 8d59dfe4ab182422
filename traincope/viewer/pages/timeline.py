"""Timeline page: spans of every rank and lane, from the whole run down to a microsecond."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from traincope.figures.drawing.themes import Figure, pixels
from traincope.figures.run.arrangement import lanes_of
from traincope.figures.run.timeline import Picture, class_colour, timeline
from traincope.report.schema import Document, Fault
from traincope.tiles.lanes import ACTIVITY, wait_classes
from traincope.tiles.storage import Tiles
from traincope.tiles.zoom import Bars, Raster, class_times
from traincope.units import count, duration, numbers, share
from traincope.viewer.components import absent, facts, field, graph, parameter, plain, table
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.timeline.drawing import arrangement_of, picture
from traincope.viewer.timeline.picking import Picked, RankPart, find, parts_of
from traincope.viewer.timeline.searching import search
from traincope.viewer.timeline.span_details import class_name, describe, last_arrival
from traincope.viewer.view import View

GRAPH, INSPECTOR, LEGEND, MATCHES, CAPTION = "timeline", "inspector", "legend", "found", "caption"
MAX_PARTS = 64
HINT = (
    "Point at the timeline to read it. Click a bar for details. Drag to sum a stretch by term. Ctrl and wheel, or w "
    "and s, zoom; a and d move; f shows what is chosen; m sums it; 0 shows the whole run."
)
MAX_FAULTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The parts of the page that change with the view."""

    figure: Figure
    around: Mapping[str, Sequence[Component] | str]
    """Id of a place on the page -> its content."""


def render(asked: Asked) -> Sequence[Component]:
    if not asked.tiles.header.rows:
        return [absent("No timeline: the run has no records and no imported kernel trace.")]
    shown = _shown(asked)
    drawn = graph(shown.figure, theme=asked.theme, id=GRAPH, scrollZoom=False, doubleClick=False)
    places = {name: html.Div(children, id=name, className=name) for name, children in shown.around.items()}
    controls = html.Div(_controls(asked, asked.tiles), className="controls")
    ruler = html.Div(id="ruler", role="presentation")
    pane = html.Div([ruler, drawn], id="pane", tabIndex="0")
    area = html.Div([pane, places[INSPECTOR]], className="area")
    return [controls, places[CAPTION], places[MATCHES], places[LEGEND], area]


def update(asked: Asked) -> Mapping[str, Mapping[str, object]]:
    shown = _shown(asked)
    changed: dict[str, Mapping[str, object]] = {name: {"children": content} for name, content in shown.around.items()}
    return changed | {GRAPH: {"figure": shown.figure, "style": {"height": f"{pixels(shown.figure)}px"}}}


def _shown(asked: Asked) -> Shown:
    tiles = asked.tiles
    drawn = picture(asked.view, asked.opened, tiles)
    picked = find(tiles, asked.view.text("pick") or "")
    around: dict[str, Sequence[Component] | str] = {
        CAPTION: _caption(asked.view, tiles, drawn),
        MATCHES: search(asked.view, tiles),
        LEGEND: _legend(tiles, drawn),
        INSPECTOR: _inspector(asked.view, tiles, picked),
    }
    return Shown(figure=timeline(drawn, theme=asked.theme), around=around)


def _controls(asked: Asked, tiles: Tiles) -> list[Component]:
    view, document = asked.view, asked.opened.document
    faults = [] if document is None else [*_faults(document)][:MAX_FAULTS]
    options = [
        {
            "label": plain(
                f"{fault['kind'].replace('_', ' ')} {numbers(fault['ranks'], 'rank') if fault['ranks'] else ''}"
            ),
            "value": str(fault["at_ns"] - tiles.header.origin_ns),
        }
        for fault in faults
    ]
    steps = tiles.header.steps
    span = f"{steps[0][0]} to {steps[-1][0]}" if steps else "no steps"
    return [
        field("ranks", _entry("ranks", view.text("ranks"), placeholder="all, or 0-7,12")),
        field(
            "lanes",
            dcc.Dropdown(
                id=parameter("lanes"),
                options=[{"label": plain(lane), "value": lane} for lane in lanes_of(tiles.header)],
                value=list(view.texts("lanes")),
                multi=True,
                placeholder="automatic",
                className="lanes",
            ),
        ),
        field("step", _entry("step", view.text("step"), placeholder=span)),
        field(
            "fault",
            dcc.Dropdown(
                id=parameter("at"),
                options=options,
                value=view.text("at"),
                placeholder="choose a fault" if options else "no faults",
                disabled=not options,
                className="faults",
            ),
        ),
        field("search", _entry("q", view.text("q"), placeholder="span name (key /)")),
        html.Button("whole run", id="whole", title="show the whole run (key 0)", n_clicks=0),
    ]


def _faults(document: Document) -> Iterator[Fault]:
    """The faults of the attempt that the timeline shows."""
    own = document["run"]["attempt"]
    return (fault for fault in document["faults"] if not fault["mark"] and fault["attempt"] in (None, own))


def _entry(name: str, value: str | None, *, placeholder: str) -> Component:
    return dcc.Input(id=parameter(name), value=value or "", debounce=True, placeholder=placeholder, type="text")


def _caption(view: View, tiles: Tiles, drawn: Picture) -> str:
    if isinstance(drawn.drawn, Bars):
        how = f"{count(len(drawn.drawn.span), 'bar')}"
    else:
        how = f"{duration(drawn.drawn.width_ns)} per pixel, coloured by share of time; zoom in to see single spans"
    missing = f"; no records from {numbers(tiles.header.missing, 'rank')}" if tiles.header.missing else ""
    step = view.whole("step")
    if step is not None and step not in [number for number, _, _ in tiles.header.steps]:
        missing += f"; step {step} was not recorded"
    ranks = {rank for line in drawn.arrangement.lines for rank in line.ranks}
    shown = f"{count(len(ranks), 'rank')}, {duration(drawn.end_ns - drawn.begin_ns)}"
    folded = max((len(line.rows) for line in drawn.arrangement.lines), default=1)
    per_line = f", {folded} ranks per line" if folded > 1 else ""
    return plain(f"{shown}{per_line}: {how}{missing}") if ranks else "no records of the chosen ranks"


def _legend(tiles: Tiles, drawn: Picture) -> list[Component]:
    """The colours of the classes in the picture."""
    present = {number for line in drawn.arrangement.lines for row in line.rows for number in row.classes}
    if isinstance(drawn.drawn, Raster):
        visible = np.flatnonzero(drawn.drawn.shares.any(axis=(0, 2)))
        present = {drawn.drawn.classes[at] for at in visible.tolist()}
    else:
        present &= {
            *drawn.drawn.class_number.tolist(),
            *wait_classes(tiles.header.classes)[drawn.drawn.class_number].tolist(),
        }
    return [
        html.Span(
            [
                html.I(style={"background": class_colour(tiles.header.classes[number])}),
                plain(class_name(tiles.header.classes[number])),
            ]
        )
        for number in sorted(present)
    ]


def _inspector(view: View, tiles: Tiles, picked: Picked | None) -> list[Component]:
    children: list[Component] = []
    if (stretch := view.stretch("selected")) is not None:
        children.append(_sums(view, tiles, *stretch))
    if picked is not None:
        span: Any = {"data-begin": str(picked.span["start_ns"]), "data-end": str(picked.span["end_ns"])}
        children.append(html.Div(facts(describe(tiles, picked.span, picked.row)), id="picked", **span))
        if parts := parts_of(tiles, picked):
            children.append(_arrivals(parts))
    return [html.P("" if children else HINT, id="reading"), *children]


def _sums(view: View, tiles: Tiles, begin_ns: int, end_ns: int) -> Component:
    """Time of each term in the selected stretch, mean over the shown ranks."""
    shown = {rank for line in arrangement_of(view, tiles).lines for rank in line.ranks}
    rows = [row for row in tiles.header.rows if row.rank in shown and row.lane == ACTIVITY]
    times = class_times(tiles, rows, begin_ns=begin_ns, end_ns=end_ns)
    length, ranks = end_ns - begin_ns, max(len(rows), 1)
    times_and_rest = [
        *((class_name(tiles.header.classes[number]), ns) for number, ns in times.items()),
        ("no probe", length * len(rows) - sum(times.values())),
    ]
    of_rows = [(name, duration(round(ns / ranks)), share(ns / ranks / length)) for name, ns in times_and_rest if ns > 0]
    head = f"Selected: {duration(length)}, mean over {count(len(rows), 'rank')}"
    return html.Div([html.H3(head), table(("term", "time", "share"), of_rows)])


def _arrivals(parts: list[RankPart]) -> Component:
    """Arrival, wait and duration of each rank's part in a collective."""
    first = min(part.start_ns for part in parts)
    rows = [
        (
            f"rank {part.rank}",
            f"+{duration(part.start_ns - first)}",
            duration(part.wait_ns),
            duration(part.end_ns - part.start_ns),
            "unknown" if part.bound_ns is None else f"within {duration(part.bound_ns)}",
        )
        for part in sorted(parts, key=lambda part: part.start_ns)[:MAX_PARTS]
    ]
    head = f"{count(len(parts), 'part')}: {last_arrival(parts)}"
    more = [html.P(f"and {len(parts) - MAX_PARTS} more")] if len(parts) > MAX_PARTS else []
    heads = ("rank", "arrival", "wait", "duration", "clock error")
    return html.Div([html.H3(head), table(heads, rows), *more])


PAGE = Page(slug="timeline", title="Timeline", needs=Needs.TILES, render=render, update=update)
