"""`traincope sql`: SQL on the steps, terms, collectives, spans, faults and values of runs."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from traincope.cli.answers import add_format, write_answer
from traincope.cli.given_runs import given_runs
from traincope.cli.screen import make_console
from traincope.errors import MissingDependencyError, UsageError
from traincope.lines import GAP, Trimmed, text
from traincope.printable import short
from traincope.units import MISSING, count

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from traincope.tables.documentation import DescribedView

CSV, PARQUET = "csv", "parquet"
MAX_ROWS = 100
"""Rows of a table on a terminal; the other formats have all."""
MAX_WIDE_ROWS = 10
"""Rows on a terminal that is too narrow for the table, each over many lines."""
MAX_CELL = 60
"""Characters of a cell on a terminal."""
WIDE = 1000
"""Width of a table in a file or pipe: lines do not wrap there."""
NUMBERS = ("int16", "uint16", "int32", "int64", "uint64", "float", "double")
"""Types of Arrow that are aligned to the right."""


class Sql:
    name = "sql"
    example = "traincope sql sample_runs/demo 'select term, sum(ns) ns from ledger where counted group by term'"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "words",
            nargs="*",
            metavar="[RUN...] QUERY",
            help="run directories, or none for the newest run; then one SELECT in DuckDB's SQL. The column `run` "
            "distinguishes several runs",
        )
        parser.add_argument("--views", action="store_true", help="list the views with their columns and units")
        add_format(parser, CSV, PARQUET)
        parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE instead of the screen")

    def run(self, arguments: argparse.Namespace) -> int:
        _check(arguments)
        try:
            content = _views(arguments.format) if arguments.views else _answer(arguments)
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"traincope sql needs {error.name}, which is not installed: pip install 'traincope[sql]'"
            ) from error
        write_answer(content, arguments.output)
        return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.format == PARQUET and arguments.output is None and sys.stdout.isatty():
        raise UsageError("Parquet is a file; give its name, e.g. -o answer.parquet")
    if arguments.views:
        if arguments.format not in ("text", "json"):
            raise UsageError("--views prints text or JSON; give another --format")
    elif not arguments.words:
        raise UsageError("give one query, after the run directories if they are not the newest run; or --views")
    elif Path(arguments.words[-1]).exists():
        raise UsageError(f"{arguments.words[-1]} is a path; give the query as the last argument, in quotes")


def _answer(arguments: argparse.Namespace) -> str | bytes:
    from traincope.tables.query import named_runs, run_query
    from traincope.tables.rows import csv_text, json_rows, parquet_bytes
    from traincope.tables.sources import Sources

    *paths, query = arguments.words
    runs = named_runs(given_runs([Path(path) for path in paths]))
    answer = run_query([Sources.at(path, name=name) for name, path in runs.items()], query)
    if arguments.format == PARQUET:
        return parquet_bytes(answer)
    if arguments.format == CSV:
        return csv_text(answer)
    if arguments.format == "json":
        return json.dumps(json_rows(answer), indent=1) + "\n"
    return _drawn(lambda console: _show_rows(answer, console))


def _views(format: str) -> str:
    from traincope.tables.documentation import described

    if format == "json":
        return json.dumps(described(), indent=1) + "\n"
    return _drawn(lambda console: _show_views(described(), console))


def _drawn(show: Callable[[Console], None]) -> str:
    console = make_console(file=StringIO(), width=None if sys.stdout.isatty() else WIDE)
    with console.capture() as captured:
        show(console)
    return captured.get()


def _show_rows(answer: "pa.Table", console: Console) -> None:
    """Print the first rows as a table, or each as a table if they are too wide, and the number of all."""
    from traincope.tables.rows import cells

    names = [text(short(name, max_length=MAX_CELL)) for name in answer.column_names]
    rows = [
        [text(short(cell, max_length=MAX_CELL)) for cell in row]
        for row in cells(answer.slice(0, MAX_ROWS), null=MISSING)
    ]
    widths = (max(each.cell_len for each in column) for column in zip(names, *rows, strict=True))
    is_wide = sum(widths) + GAP * (len(names) - 1) > console.width
    shown = rows[:MAX_WIDE_ROWS] if is_wide else rows
    for table in _rows_apart(names, shown) if is_wide else [_rows_together(answer, names, shown)]:
        console.print(Trimmed(table), end="")
    more = f", {len(shown)} of them shown; --format csv has all" if len(answer) > len(shown) else ""
    console.print(text(f"{count(len(answer), 'row')}{more}", style="dim"))


def _rows_together(answer: "pa.Table", names: list[Text], rows: list[list[Text]]) -> Table:
    table = _table(*names)
    for column, field in zip(table.columns, answer.schema, strict=True):
        column.justify = "right" if str(field.type) in NUMBERS else "left"
    for row in rows:
        table.add_row(*row)
    return table


def _rows_apart(names: list[Text], rows: list[list[Text]]) -> Iterator[Table]:
    """One table for each row, with a line for each column."""
    for number, row in enumerate(rows, start=1):
        table = _table(text(f"row {number}"), text(""))
        table.columns[-1].no_wrap = False
        for name, cell in zip(names, row, strict=True):
            table.add_row(text("  ").append(name), cell)
        yield table


def _show_views(views: Sequence["DescribedView"], console: Console) -> None:
    for view in views:
        console.print(text(view["name"], style="bold").append(f"  one row: {view['row']}", style="not bold dim"))
        table = _table(*map(text, ("  column", "type", "unit", "meaning")))
        table.columns[-1].no_wrap = False
        for column in view["columns"]:
            table.add_row(f"  {column['name']}", column["type"], column["unit"].strip("`"), text(column["help"]))
        console.print(Trimmed(table), end="")


def _table(*heads: Text) -> Table:
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    for head in heads:
        table.add_column(head, no_wrap=True, overflow="ellipsis")
    return table
