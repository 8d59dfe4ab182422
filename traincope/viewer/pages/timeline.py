"""Timeline: what every rank did on every lane, from the whole job to a microsecond."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis.zoom import Bars, Raster
from traincope.figures.arrangement import lanes_of
from traincope.figures.themes import Figure, pixels
from traincope.figures.timeline import Picture, class_colour, timeline
from traincope.store.tiles import Tiles
from traincope.units import count, duration, numbers
from traincope.viewer.components import absent, facts, field, graph, parameter, said, table
from traincope.viewer.drawing import picture, waiting
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.picking import Picked, RankPart, find, parts_of
from traincope.viewer.searching import search
from traincope.viewer.telling import class_name, told, who_came_last
from traincope.viewer.view import View

GRAPH, INSPECTOR, LEGEND, FOUND, CAPTION = "timeline", "inspector", "legend", "found", "caption"
MOST_PARTS = 64
MOST_FAULTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What follows the view."""

    figure: Figure
    around: Mapping[str, Sequence[Component] | str]
    """Id of a place -> what is in it."""


def render(asked: Asked) -> Sequence[Component]:
    if not asked.tiles.header.rows:
        return [absent("No rank left a record, and no kernel trace was imported: there is nothing to draw.")]
    shown = _shown(asked)
    drawn = graph(shown.figure, theme=asked.theme, id=GRAPH, scrollZoom=True, doubleClick=False)
    places = {name: html.Div(children, id=name, className=name) for name, children in shown.around.items()}
    controls = html.Div(_controls(asked, asked.tiles), className="controls")
    return [controls, places[CAPTION], places[FOUND], drawn, places[LEGEND], places[INSPECTOR]]


def update(asked: Asked) -> Mapping[str, Mapping[str, object]]:
    shown = _shown(asked)
    changed: dict[str, Mapping[str, object]] = {name: {"children": one} for name, one in shown.around.items()}
    return changed | {GRAPH: {"figure": shown.figure, "style": {"height": f"{pixels(shown.figure)}px"}}}


def _shown(asked: Asked) -> Shown:
    tiles = asked.tiles
    drawn = picture(asked.view, asked.opened, tiles)
    picked = find(tiles, asked.view.text("pick") or "")
    around: dict[str, Sequence[Component] | str] = {
        CAPTION: _caption(asked.view, tiles, drawn),
        FOUND: search(asked.view, tiles),
        LEGEND: _legend(tiles, drawn),
        INSPECTOR: _inspector(tiles, picked),
    }
    return Shown(figure=timeline(drawn, theme=asked.theme), around=around)


def _controls(asked: Asked, tiles: Tiles) -> list[Component]:
    view, document = asked.view, asked.opened.document
    faults = [] if document is None else [fault for fault in document["faults"] if not fault["mark"]][:MOST_FAULTS]
    options = [
        {
            "label": said(
                f"{fault['kind'].replace('_', ' ')} {numbers(fault['ranks'], 'rank') if fault['ranks'] else ''}"
            ),
            "value": str(fault["at_ns"] - tiles.header.origin_ns),
        }
        for fault in faults
    ]
    steps = tiles.header.steps
    between = f"{steps[0][0]} to {steps[-1][0]}" if steps else "none"
    return [
        field("ranks", _entry("ranks", view.text("ranks"), placeholder="all, or 0-7,12")),
        field(
            "lanes",
            dcc.Dropdown(
                id=parameter("lanes"),
                options=[{"label": said(lane), "value": lane} for lane in lanes_of(tiles.header)],
                value=list(view.texts("lanes")),
                multi=True,
                placeholder="those that suit",
                className="lanes",
            ),
        ),
        field("step", _entry("step", view.text("step"), placeholder=between)),
        field(
            "fault",
            dcc.Dropdown(
                id=parameter("at"),
                options=options,
                value=view.text("at"),
                placeholder="jump to one" if options else "there is none",
                disabled=not options,
                className="faults",
            ),
        ),
        field("search", _entry("q", view.text("q"), placeholder="a name, press /")),
        html.Button("whole run", id="whole", title="0", n_clicks=0),
    ]


def _entry(name: str, value: str | None, *, placeholder: str) -> Component:
    return dcc.Input(id=parameter(name), value=value or "", debounce=True, placeholder=placeholder, type="text")


def _caption(view: View, tiles: Tiles, drawn: Picture) -> str:
    if isinstance(drawn.drawn, Bars):
        how = f"{count(len(drawn.drawn.span), 'bar')}"
    else:
        how = f"a pixel is {duration(drawn.drawn.width_ns)}, its classes by their share; zoom in for spans"
    missing = f"; {numbers(tiles.header.missing, 'rank')} left no records" if tiles.header.missing else ""
    step = view.whole("step")
    if step is not None and step not in [number for number, _, _ in tiles.header.steps]:
        missing += f"; no step {step} was recorded"
    ranks = {rank for line in drawn.arrangement.lines for rank in line.ranks}
    shown = f"{count(len(ranks), 'rank')}, {duration(drawn.end_ns - drawn.begin_ns)}"
    folded = max((len(line.rows) for line in drawn.arrangement.lines), default=1)
    of_each = f", {folded} ranks a line" if folded > 1 else ""
    return said(f"{shown}{of_each}: {how}{missing}") if ranks else "no rank that was asked for left records"


def _legend(tiles: Tiles, drawn: Picture) -> list[Component]:
    """The classes that can be in the picture."""
    present = {of for line in drawn.arrangement.lines for row in line.rows for of in row.classes}
    if isinstance(drawn.drawn, Raster):
        seen = np.flatnonzero(drawn.drawn.shares.any(axis=(0, 2)))
        present = {drawn.drawn.classes[at] for at in seen.tolist()}
    else:
        present &= {*drawn.drawn.of.tolist(), *waiting(tiles.header.classes)[drawn.drawn.of].tolist()}
    return [
        html.Span(
            [
                html.I(style={"background": class_colour(tiles.header.classes[of])}),
                said(class_name(tiles.header.classes[of])),
            ]
        )
        for of in sorted(present)
    ]


def _inspector(tiles: Tiles, picked: Picked | None) -> list[Component]:
    if picked is None:
        return [html.P("Point at the picture to read it; click a bar to see all that is known of it.", id="reading")]
    parts = parts_of(tiles, picked)
    children = [facts(told(tiles, picked.span, picked.row))]
    if parts:
        children.append(_arrivals(parts))
    return [html.P("", id="reading"), *children]


def _arrivals(parts: list[RankPart]) -> Component:
    """Who came when."""
    first = min(part.start_ns for part in parts)
    rows = [
        (
            f"rank {part.rank}",
            f"+{duration(part.start_ns - first)}",
            duration(part.wait_ns),
            duration(part.end_ns - part.start_ns),
            "unbounded" if part.bound_ns is None else f"within {duration(part.bound_ns)}",
        )
        for part in sorted(parts, key=lambda part: part.start_ns)[:MOST_PARTS]
    ]
    head = f"{count(len(parts), 'part')}: {who_came_last(parts)}"
    more = [html.P(f"and {len(parts) - MOST_PARTS} more")] if len(parts) > MOST_PARTS else []
    heads = ("rank", "came", "waited", "took", "clock")
    return html.Div([html.H3(head), table(heads, rows), *more])


PAGE = Page(slug="timeline", title="Timeline", needs=Needs.TILES, render=render, update=update)
