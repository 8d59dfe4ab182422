"""The schema of the views for readers: as objects, and as docs/reference/sql-views.md."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from traincope.tables.view import SQL_TYPES, Column, View
from traincope.tables.views import VIEWS

HEAD = """# Views of `traincope sql`

This page is generated from `traincope/tables/views.py`. [Ask SQL of runs](sql.md) shows how to use the views. Null is
unknown, never 0. `counted`: the step enters the sums of the report.
"""


class DescribedColumn(TypedDict):
    name: str
    type: str
    """Type in DuckDB."""
    unit: str
    """Empty: a plain number, a name or a text."""
    help: str


class DescribedView(TypedDict):
    name: str
    row: str
    """Noun phrase for one row."""
    columns: list[DescribedColumn]


def described() -> list[DescribedView]:
    """All views with their columns."""
    return [_view(view) for view in VIEWS.values()]


def _view(view: View) -> DescribedView:
    return DescribedView(name=view.name, row=view.row, columns=[_column(column) for column in view.columns])


def _column(column: Column) -> DescribedColumn:
    return DescribedColumn(name=column.name, type=SQL_TYPES[column.type], unit=column.unit, help=column.help)


def markdown() -> str:
    """The page."""
    return "\n".join((HEAD, *_lines()))


def _lines() -> Iterator[str]:
    for view in described():
        yield from (f"## `{view['name']}`", "", f"One row: {view['row']}.", "")
        yield from ("|column|type, unit|meaning|", "|---|---|---|")
        for column in view["columns"]:
            kind = ", ".join(filter(None, (column["type"], column["unit"])))
            yield f"|`{column['name']}`|{kind}|{column['help']}|"
        yield ""


def write(path: str) -> None:
    """Write the page to `path`."""
    Path(path).write_text(markdown().rstrip("\n") + "\n", encoding="utf-8")
