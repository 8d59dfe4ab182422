"""Building blocks of the pages. Text becomes a child and never HTML, so React escapes it."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from traincope.figures.drawing.themes import Figure, on_paper, pixels
from traincope.printable import short
from traincope.report.sections.section import Item
from traincope.viewer.numbers import MAX_CHARACTERS, words

MAX_SENTENCES = 2_000
"""Characters of the evidence or the advice of a finding."""
MAX_SHORT, LONG = 12, 40
"""Characters of a table's cell that stay in one line, and from which on it keeps some width on a telephone."""
PIECES = re.compile(r"(?<=[_.])(?=[A-Za-z])|(?=\[)|(?<=[0-9A-Za-z]{20})(?=[0-9A-Za-z])")
"""Where a long name in a table's cell may be broken."""


def section(title: str, *children: Component | str, note: str = "") -> Component:
    """A part of a page with a heading and a note next to it."""
    return html.Section([html.H2([plain(title), html.Span(plain(note), className="note")]), *children])


def plain(text: str, *, max_length: int = MAX_CHARACTERS) -> str:
    """Text of a run without control characters, at most `max_length` characters long."""
    return short(text, max_length=max_length)


def absent(why: str) -> Component:
    """A box that says why something cannot be shown."""
    return html.P(plain(why), className="absent")


def graph(figure: Figure, *, theme: str, id: str | dict[str, str] | None = None, **config: Any) -> Component:
    """A figure on light or dark paper."""
    settings: Any = {"displaylogo": False, "responsive": True, "displayModeBar": False, **config}
    named: dict[str, Any] = {} if id is None else {"id": id}
    style = {"height": f"{pixels(figure)}px"}
    return dcc.Graph(figure=on_paper(figure, theme), config=settings, style=style, **named)


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers_from: int = 1,
    left: Collection[int] | None = None,
) -> Component:
    """A table of texts and components; columns from `numbers_from` on, or all but `left`, are numbers."""

    def cells(row: Sequence[object], kind: Callable[..., Component]) -> list[Component]:
        kinds = [
            _kind(cell, is_number=at >= numbers_from if left is None else at not in left) for at, cell in enumerate(row)
        ]
        texts = [cell if isinstance(cell, Component) else plain(str(cell)) for cell in row]
        contents = [_breakable(text) if isinstance(text, str) else text for text in texts]
        return [kind(content, className=name) for content, name in zip(contents, kinds, strict=True)]

    body = [html.Tr(cells(row, html.Td)) for row in rows]
    return html.Div(html.Table([html.Thead(html.Tr(cells(heads, html.Th))), html.Tbody(body)]), className="scroll")


def _kind(cell: object, *, is_number: bool) -> str:
    if is_number:
        return "number"
    if not isinstance(cell, str):
        return ""
    return "short" if len(cell) <= MAX_SHORT else "long" if len(cell) > LONG else ""


def _breakable(text: str) -> str | list[Component | str]:
    """The text; if it is a single name, with places where a browser may break it."""
    first, *others = (text,) if " " in text else PIECES.split(text)
    return text if not others else [first, *(part for other in others for part in (html.Wbr(), other))]


def facts(pairs: Iterable[tuple[str, str]]) -> Component:
    """A list of names and values, one line each."""
    return html.Dl([part for name, value in pairs for part in (html.Dt(plain(name)), html.Dd(plain(value)))])


def article(item: Item, at: int, *, document: Mapping[str, object], links: Sequence[Component | str] = ()) -> Component:
    """A finding, the `at`-th of its verdict from 0 on, with its numbers from `document`."""
    parts: list[Component] = [
        html.H3(f"{at + 1}. {plain(item.kind.words.capitalize())}"),
        html.P(words(document, item.facts), className="facts"),
        html.P(plain(item.evidence, max_length=MAX_SENTENCES)),
    ]
    if item.advice:
        parts.append(html.P([html.B("Do: "), plain(item.advice, max_length=MAX_SENTENCES)]))
    if links:
        parts.append(html.P(list(links)))
    return html.Article(parts, className=f"finding {'healthy' if item.good else ''}")


def field(label: str, control: Component) -> Component:
    """A control under its label."""
    return html.Label([html.Span(label), control], className="field")


def parameter(name: str) -> dict[str, str]:
    """Id of a control whose value is a parameter of the address."""
    return {"type": "parameter", "name": name}


def linked(name: str) -> dict[str, str]:
    """Id of a figure whose marks are links (assets/viewer.js follows them)."""
    return {"type": "linked", "name": name}
