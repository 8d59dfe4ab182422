"""Numbers on a page: each carries its exact value, and where in the JSON of a command it stands."""

from collections.abc import Mapping
from typing import Any

from dash import html
from dash.development.base_component import Component

from traincope.report.forms import FORMS, Form
from traincope.units import MISSING

REPORT, DIFF, PLAN = "report", "diff", "plan"


def number(document: Mapping[str, object], *path: str | int, form: Form, of: str = REPORT) -> Component:
    """The number at `path` of the document that `of` prints; missing reads "-"."""
    value = found(document, *path)
    if value is None:
        return html.Span(MISSING, className="missing")
    pointer = "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in path)
    source: dict[str, Any] = {"data-of": of, "data-at": pointer, "data-as": form}
    return html.Data(FORMS[form](value), value=repr(value), **source)


def found(document: Mapping[str, object], *path: str | int) -> float | None:
    """None where something on the way is null, or no number."""
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
    """A number to be read from afar."""
    return html.Div([html.B(value), html.Span(name), html.Span(f" {note}" if note else "")], className="tile")
