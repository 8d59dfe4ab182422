"""Numbers on a page: each carries its exact value and its place in a command's JSON."""

from collections.abc import Mapping
from typing import Any

from dash import html
from dash.development.base_component import Component

from traincope.report.text.forms import FORMS, Form
from traincope.units import MISSING

REPORT, DIFF, PLAN, SEARCH = "report", "diff", "plan", "search"


def number(document: Mapping[str, object], *path: str | int, form: Form, command: str = REPORT) -> Component:
    """The number at `path` of the document that the command `command` prints; a missing number reads "-"."""
    value = value_at(document, *path)
    if value is None:
        return html.Span(MISSING, className="missing")
    pointer = "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in path)
    source: dict[str, Any] = {"data-of": command, "data-at": pointer, "data-as": form}
    return html.Data(FORMS[form](value), value=repr(value), **source)


def value_at(document: Mapping[str, object], *path: str | int) -> float | None:
    """The number at `path`; None where a key on the way is null or the value is not a number."""
    at: object = document
    for key in path:
        if isinstance(at, list) and isinstance(key, int):
            at = at[key]
        elif isinstance(at, dict):
            at = at.get(key)
        else:
            return None
    return at if isinstance(at, int | float) and not isinstance(at, bool) else None


def tile(name: str, value: Component | str | list[Component | str], *, note: str = "") -> Component:
    """A large number with its name below."""
    return html.Div([html.B(value), html.Span(name), html.Span(f", {note}" if note else "")], className="tile")
