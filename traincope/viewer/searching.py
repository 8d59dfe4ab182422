"""Spans by name."""

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from traincope.figures.time_axis import instant
from traincope.store.tiles import Row, Tiles
from traincope.units import count, duration
from traincope.viewer.components import said
from traincope.viewer.picking import Span, pick, spans_of
from traincope.viewer.telling import title
from traincope.viewer.view import View

MOST_FOUND = 12
AROUND = 3
"""Lengths of a span that is found, shown on each side of it."""
LEAST_NS = 1_000


def search(view: View, tiles: Tiles) -> list[Component]:
    """The first that hold the words, each a link to where it is."""
    words = (view.text("q") or "").strip().lower()
    if not words:
        return []
    names = [number for number, name in enumerate(tiles.header.names) if words in name.lower()]
    ranks = view.ranks()
    rows = [row for row in tiles.header.rows if row.num_spans and (ranks is None or row.rank in ranks)]
    wanted = np.zeros(len(tiles.header.names) + 1, dtype=bool)
    wanted[names] = True
    found = (
        []
        if not names
        else [(row, row.first_span + np.flatnonzero(wanted[tiles.spans["name"][row.spans]])) for row in rows]
    )
    total = sum(len(at) for _, at in found)
    first = sorted(
        ((int(tiles.spans["start_ns"][at]), at, row) for row, own in found for at in own[:MOST_FOUND].tolist()),
        key=lambda hit: hit[:2],
    )
    links = [_link(view, tiles, spans_of(tiles.spans[at : at + 1])[0], row) for _, at, row in first[:MOST_FOUND]]
    told = f"{count(total, 'span')} named so" + (f", the first {MOST_FOUND}:" if total > MOST_FOUND else "")
    return [html.P(told if total else said(f"nothing is named {words}")), html.Ul(links)]


def _link(view: View, tiles: Tiles, span: Span, row: Row) -> Component:
    start, end = span["start_ns"], span["end_ns"]
    beside = max((end - start) * AROUND, LEAST_NS)
    there = view.but(from_=start - beside, to=end + beside, step=None, at=None, pick=pick(span, row))
    text = f"{title(tiles, span)}, rank {row.rank}, {instant(start, step_ns=1)}, {duration(end - start)}"
    return html.Li(dcc.Link(said(text, most=120), href=there.address))
