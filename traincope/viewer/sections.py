"""A section of data as a part of a page: figures with their captions, tables, notes and links."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import assert_never

from dash import dcc, html
from dash.development.base_component import Component

from traincope.figures.drawn import DRAWN
from traincope.report.sections.reliability import is_logbook
from traincope.report.sections.section import (
    Choice,
    Drawing,
    Findings,
    Kind,
    Lines,
    Link,
    Listing,
    Section,
    Shown,
    Table,
    Words,
)
from traincope.report.sections.source import Source
from traincope.report.sections.values import plain
from traincope.units import numbers
from traincope.viewer.components import absent, article, field, linked, parameter, section, table
from traincope.viewer.components import plain as printed
from traincope.viewer.numbers import words
from traincope.viewer.pages import explained
from traincope.viewer.pages.page import Asked, Needs, Page

SCOPE = "of"
"""Parameter of the address: the scope of a figure."""
MAX_SCOPES = 512
HINTS = {
    "term": "click a bar for the steps and ranks with the most of that term",
    "step": "click a bar to open that step on the timeline",
    "cell": "click a cell to open its step on the timeline",
}
"""Kind of mark that is a link -> what a click does."""


def page(slug: str, title: str, *makers: Callable[[Source], Section]) -> Page:
    """A page that shows sections and nothing else; of a logbook, those with evidence."""

    def render(asked: Asked) -> list[Component]:
        made = [make(asked.source) for make in makers]
        return [rendered(each, asked) for each in made if each.missing is None or not is_logbook(asked.document)]

    return Page(slug=slug, title=title, needs=Needs.ANALYSIS, render=render)


def rendered(
    each: Section,
    asked: Asked,
    *,
    document: Mapping[str, object] | None = None,
    links: Sequence[Sequence[Component | str]] = (),
) -> Component:
    """A section under its heading; an empty one is its reason alone.

    `document` has its numbers, by default that of the run; `links` are those of each of its findings.
    """
    of = asked.document if document is None else document
    more = [html.P(_link(link, asked)) for link in each.links]
    if each.missing is not None:
        return html.Div([absent(each.missing), *more]) if more else absent(each.missing)
    parts = [component for part in each.on_screens for component in _part(part, asked, of, links, title=each.title)]
    return section(each.title, *parts, *more, note=plain(of, each.lead))


def _part(
    part: Shown, asked: Asked, document: Mapping[str, object], links: Sequence[Sequence[Component | str]], *, title: str
) -> Iterator[Component]:
    """A caption that repeats the section's title is left out."""
    match part:
        case Table():
            if part.caption != title and not part.folded:
                yield html.H3(printed(part.caption))
            rows = ([_cell(cell, asked, document) for cell in row] for row in part.rows)
            shown = table(part.heads, rows, left=part.left)
            yield html.Details([html.Summary(printed(part.caption)), shown]) if part.folded else shown
        case Drawing():
            yield from _drawn(part, part.of, asked)
        case Choice():
            scopes = [scope for group in part.groups for scope in group]
            chosen = asked.view.text(SCOPE)
            chosen = chosen if chosen in scopes else scopes[0]
            options = dcc.Dropdown(
                id=parameter(SCOPE), options=scopes[:MAX_SCOPES], value=chosen, clearable=False, className="faults"
            )
            yield html.Div([field("scope", options)], className="controls")
            yield from _drawn(part, part.of(chosen), asked)
        case Lines() if part.lines:
            yield html.Ul([html.Li(words(document, line)) for line in part.lines])
        case Lines():
            pass
        case Listing():
            yield html.H3(printed(part.caption))
            yield html.Pre("\n".join(map(printed, part.lines)))
        case Findings():
            for at, item in enumerate(part.items):
                yield article(item, at, document=document, links=links[at] if links else ())
        case _:
            assert_never(part)


def _drawn(part: Drawing | Choice, of: tuple[object, ...], asked: Asked) -> Iterator[Component]:
    """A figure below its caption, which says what a click does."""
    yield html.P(printed("; ".join(filter(None, (part.caption, HINTS.get(part.links))))), className="note")
    yield asked.graph(DRAWN[part.figure](*of), id=linked(part.links) if part.links else None)


def _cell(cell: Words, asked: Asked, document: Mapping[str, object]) -> Component | str:
    """A cell of a table; plain text stays a string, whose length decides how it wraps."""
    match cell:
        case str():
            return cell
        case Kind():
            return explained.link(asked.view, cell.name, cell.words)
        case Link():
            return _link(cell, asked)
        case _:
            return html.Span(words(document, cell))


def _link(link: Link, asked: Asked) -> Component:
    at = None if link.at_ns is None else link.at_ns - asked.tiles.header.origin_ns
    view = asked.view.on(link.page, step=link.step, at=at, ranks=numbers(link.ranks) or None)
    return dcc.Link(link.words, href=view.address)
