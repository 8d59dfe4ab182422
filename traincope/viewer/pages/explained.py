"""Explained page: what each kind of finding and fault means, how we know, what to do, how to check it worked."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.explanations import Explanation, explanations
from traincope.viewer.components import section
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.view import View


def render(asked: Asked) -> Sequence[Component]:
    entry = explanations().get(asked.view.text("kind") or "")
    shown = [] if entry is None else [section(entry.title, dcc.Markdown(entry.text), note=", ".join(entry.kinds))]
    themes: dict[str, list[Explanation]] = {}
    for each in dict.fromkeys(explanations().values()):
        themes.setdefault(each.theme, []).append(each)
    return [
        *shown,
        *(section(theme, html.Ul([_item(asked.view, each) for each in of])) for theme, of in themes.items()),
    ]


def _item(view: View, entry: Explanation) -> Component:
    return html.Li(link(view, entry.kinds[0], entry.title))


def link(view: View, kind: str, title: str) -> Component:
    """A link to the entry of a kind."""
    return dcc.Link(title, href=view.on("explained", kind=kind).address)


PAGE = Page(slug="explained", title="Explained", needs=Needs.NOTHING, render=render)
