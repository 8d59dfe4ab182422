"""Numbers on a page: each carries its exact value and its place in a command's JSON."""

from collections.abc import Mapping
from typing import Any, assert_never

from dash import html
from dash.development.base_component import Component

from traincope.palette import colour
from traincope.printable import short
from traincope.report.sections.forms import Form
from traincope.report.sections.section import Alarm, Aside, Kind, Link, Number, Term, Words
from traincope.report.sections.values import pointer, value_of, written

MAX_CHARACTERS = 400
"""Characters of plain words."""
REPORT, DIFF, PLAN, SEARCH = "report", "diff", "plan", "search"


def number(document: Mapping[str, object], *path: str | int, form: Form, command: str = REPORT) -> Component:
    """The number at `path` of the document that the command `command` prints."""
    return component(document, Number((path,), form), command=command)


def component(document: Mapping[str, object], shown: Number, *, command: str = REPORT) -> Component:
    """A number of the document that `command` prints; a missing one reads "-"."""
    value = value_of(document, shown)
    if value is None:
        return html.Span(written(document, shown), className="missing")
    places = {"data-at": " ".join(map(pointer, shown.paths)), "data-as": shown.form}
    source: dict[str, Any] = {"data-of": command, **places}
    if shown.per is not None:
        source["data-per"] = pointer(shown.per)
    return html.Data(written(document, shown), value=repr(value), **source)


def words(document: Mapping[str, object], each: Words) -> list[Component | str]:
    """Words with their numbers."""
    match each:
        case str():
            return [short(each, max_length=MAX_CHARACTERS)]
        case Number():
            return [component(document, each)]
        case Term():
            return [html.Span(className="swatch", style={"background": colour(each.name)}), each.words or each.name]
        case Alarm():
            return [html.Strong(short(each.words, max_length=MAX_CHARACTERS), className="severe")]
        case Aside():
            return [html.Span(short(each.words, max_length=MAX_CHARACTERS), className="missing")]
        case Kind() | Link():
            return [each.words]
        case tuple():
            return [part for inner in each for part in words(document, inner)]
        case _:
            assert_never(each)


def tile(name: str, value: Component | str | list[Component | str], *, note: str = "") -> Component:
    """A large number with its name below."""
    return html.Div([html.B(value), html.Span(name), html.Span(f", {note}" if note else "")], className="tile")
