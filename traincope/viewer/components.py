"""What pages are made of. Text is given as children, never as HTML: React shows it letter by letter."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from traincope.figures.themes import Figure, on_paper, pixels
from traincope.plain import short

LONGEST = 400


def section(title: str, *children: Component | str, note: str = "") -> Component:
    """A part of a page, with its heading."""
    return html.Section([html.H2([said(title), html.Span(said(note), className="note")]), *children])


def said(text: str, *, most: int = LONGEST) -> str:
    """What came from a run, as plain text of a bearable length."""
    return short(text, most=most)


def absent(why: str) -> Component:
    """In the place of what cannot be shown."""
    return html.P(said(why), className="absent")


def graph(figure: Figure, *, theme: str, id: str | dict[str, str] | None = None, **config: Any) -> Component:
    """A figure on light or dark paper."""
    settings: Any = {"displaylogo": False, "responsive": True, "displayModeBar": False, **config}
    named: dict[str, Any] = {} if id is None else {"id": id}
    style = {"height": f"{pixels(figure)}px"}
    return dcc.Graph(figure=on_paper(figure, theme), config=settings, style=style, **named)


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, numbers_from: int = 1) -> Component:
    """Of texts and components; columns from `numbers_from` on are numbers."""

    def cells(row: Sequence[object], kind: Callable[..., Component]) -> list[Component]:
        kinds = ["number" if at >= numbers_from else "" for at in range(len(row))]
        shown = [one if isinstance(one, Component) else said(str(one)) for one in row]
        return [kind(one, className=of) for one, of in zip(shown, kinds, strict=True)]

    body = [html.Tr(cells(row, html.Td)) for row in rows]
    return html.Div(html.Table([html.Thead(html.Tr(cells(heads, html.Th))), html.Tbody(body)]), className="scroll")


def facts(pairs: Iterable[tuple[str, str]]) -> Component:
    """Names and values, one line each."""
    return html.Dl([part for name, value in pairs for part in (html.Dt(said(name)), html.Dd(said(value)))])


def field(label: str, control: Component) -> Component:
    return html.Label([html.Span(label), control], className="field")


def parameter(name: str) -> dict[str, str]:
    """Id of a control whose value is a parameter of the address."""
    return {"type": "parameter", "name": name}


def linked(name: str) -> dict[str, str]:
    """Id of a figure whose marks lead somewhere when they are clicked (assets/viewer.js)."""
    return {"type": "linked", "name": name}
