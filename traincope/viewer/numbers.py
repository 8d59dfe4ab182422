"""Numbers of the report on a page: each carries where in `report --format json` it stands, and its exact value."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from dash import html
from dash.development.base_component import Component

from traincope.report.schema import Document
from traincope.units import (
    MISSING,
    count,
    duration,
    gigabytes_per_second,
    milliseconds,
    money,
    rank_hours,
    share,
    size,
)

Form = Literal["share", "milliseconds", "duration", "size", "count", "gigabytes", "mean", "hours", "money", "ppm"]
FORMS: Mapping[str, Callable[[float], str]] = {
    "share": share,
    "milliseconds": milliseconds,
    "duration": duration,
    "size": size,
    "count": lambda value: count(round(value)),
    "gigabytes": gigabytes_per_second,
    "mean": lambda value: f"{value:,.1f}",
    "hours": rank_hours,
    "money": money,
    "ppm": lambda value: f"{value:.2f}",
}
"""How a number is written."""


def number(document: Document, *path: str | int, form: Form) -> Component:
    """The number at `path` of the document; missing reads "-"."""
    value = found(document, *path)
    if value is None:
        return html.Span(MISSING, className="missing")
    pointer = "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in path)
    source: dict[str, Any] = {"data-at": pointer, "data-as": form}
    return html.Data(FORMS[form](value), value=repr(value), **source)


def found(document: Document, *path: str | int) -> float | None:
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


def tile(name: str, value: Component | str, *, note: str = "") -> Component:
    """A number to be read from afar."""
    return html.Div([html.B(value), html.Span(name), html.Span(f" {note}" if note else "")], className="tile")
