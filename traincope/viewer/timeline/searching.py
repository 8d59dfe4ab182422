"""Search for spans by name."""

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from traincope.figures.drawing.time_axis import instant
from traincope.tiles.storage import Row, Tiles
from traincope.units import count, duration
from traincope.viewer.components import plain
from traincope.viewer.timeline.picking import Span, pick, spans_of
from traincope.viewer.timeline.span_details import title
from traincope.viewer.view import View

MAX_HITS = 12
MARGIN = 3
"""Time shown on each side of a hit, in lengths of the span."""
MIN_MARGIN_NS = 1_000


def search(view: View, tiles: Tiles) -> list[Component]:
    """The first spans whose names contain the words, each a link to its place."""
    words = (view.text("q") or "").strip().lower()
    if not words:
        return []
    names = [number for number, name in enumerate(tiles.header.names) if words in name.lower()]
    ranks = view.ranks()
    rows = [row for row in tiles.header.rows if row.num_spans and (ranks is None or row.rank in ranks)]
    matches = np.zeros(len(tiles.header.names) + 1, dtype=bool)
    matches[names] = True
    hits = (
        []
        if not names
        else [(row, row.first_span + np.flatnonzero(matches[tiles.spans["name"][row.spans]])) for row in rows]
    )
    total = sum(len(at) for _, at in hits)
    first = sorted(
        ((int(tiles.spans["start_ns"][at]), at, row) for row, spans in hits for at in spans[:MAX_HITS].tolist()),
        key=lambda hit: hit[:2],
    )
    links = [_link(view, tiles, spans_of(tiles.spans[at : at + 1])[0], row) for _, at, row in first[:MAX_HITS]]
    summary = f"{count(total, 'matching span')}" + (f", the first {MAX_HITS}:" if total > MAX_HITS else "")
    return [html.P(summary if total else plain(f"no span name contains {words}")), html.Ul(links)]


def _link(view: View, tiles: Tiles, span: Span, row: Row) -> Component:
    start, end = span["start_ns"], span["end_ns"]
    margin = max((end - start) * MARGIN, MIN_MARGIN_NS)
    target = view.but(from_=start - margin, to=end + margin, step=None, at=None, pick=pick(span, row))
    text = f"{title(tiles, span)}, rank {row.rank}, {instant(start, step_ns=1)}, {duration(end - start)}"
    return html.Li(dcc.Link(plain(text, max_length=120), href=target.address))
