"""Tables of one run as data frames."""

from importlib import import_module
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from traincope.errors import MissingDependencyError
from traincope.tables.query import run_query, table_of
from traincope.tables.sources import Sources
from traincope.tables.views import VIEWS


class RunTable:
    """A table in Arrow, and its copies as data frames."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def to_arrow(self) -> pa.Table:
        """A pyarrow.Table."""
        return self._table

    def to_pandas(self) -> Any:
        """A pandas.DataFrame. Its types hold null, so a time in ns with nulls stays exact.

        Raises MissingDependencyError without pandas.
        """
        pandas = _package("pandas")
        return self._table.to_pandas(types_mapper=pandas.ArrowDtype)

    def to_polars(self) -> Any:
        """A polars.DataFrame. Raises MissingDependencyError without polars."""
        return _package("polars").from_arrow(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return f"<table of {len(self):,} rows: {', '.join(self._table.column_names)}>"


class Tables:
    """The views of `traincope sql` as attributes: `steps`, `ranks`, `ledger`, `faults`, `collectives`, `spans`,
    `metrics`, `records`. A table is made when it is first read.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._made: dict[str, RunTable] = {}

    def __getattr__(self, name: str) -> RunTable:
        if name not in VIEWS:
            raise AttributeError(f"a run has no table {name!r}; known are {', '.join(VIEWS)}")
        if name not in self._made:
            self._made[name] = RunTable(table_of([self._sources], name))
        return self._made[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *VIEWS]

    def sql(self, query: str) -> RunTable:
        """Answer one SELECT on the views. Raises as `run_query`."""
        return RunTable(run_query([self._sources], query))


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"{name} is not installed: pip install {name}") from error
