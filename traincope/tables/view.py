"""Type of a table: its columns with their units, and the meaning of a row."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from traincope.tables.sources import Sources

WORDS = pa.dictionary(pa.int32(), pa.string())
SQL_TYPES: Mapping[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.uint16(): "USMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    WORDS: "VARCHAR",
    pa.list_(pa.int32()): "INTEGER[]",
    pa.list_(pa.string()): "VARCHAR[]",
}
"""Type of a column in Arrow -> in DuckDB."""
AXIS_TIME = "wall time since the epoch; all ranks share one axis"
"""The clock of all columns that end in `_ns` and are instants."""

Columns = dict[str, Any]
"""Arrays of numpy or pyarrow by column name."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    _: KW_ONLY
    type: pa.DataType
    help: str
    """A phrase: the quantity, and the meaning of null."""
    unit: str = ""
    """Empty: a plain number, a name or a text."""
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A table of a run. Its first column is `run`, which `make` leaves out."""

    name: str
    row: str
    """Noun phrase for one row."""
    columns: tuple[Column, ...]
    make: Callable[[Sources], Iterator[Columns]]
    """Yield the rows in parts. It is called when the table is needed."""

    def table(self, sources: Sources) -> pa.Table:
        """All rows of a run, in order of rank and time."""
        parts = [self._part(sources, columns) for columns in self.make(sources)]
        return pa.concat_tables([self.schema.empty_table(), *parts])

    @property
    def schema(self) -> pa.Schema:
        return schema(self.columns)

    def _part(self, sources: Sources, columns: Columns) -> pa.Table:
        length = len(next(iter(columns.values())))
        return typed(self.columns, {"run": words(np.zeros(length, dtype=np.int32), [sources.name]), **columns})


RUN = Column("run", type=WORDS, help="name of the run's directory", nullable=False)
RANK = Column("rank", type=pa.int32(), help="global rank", nullable=False)
STEP = Column("step", type=pa.int32(), help="number of the step; null: outside of steps")


def schema(columns: Iterable[Column]) -> pa.Schema:
    """Arrow schema of these columns."""
    return pa.schema([pa.field(column.name, column.type, nullable=column.nullable) for column in columns])


def typed(columns: Sequence[Column], arrays: Columns) -> pa.Table:
    """Table of these columns. Raises KeyError if an array is missing."""
    of = schema(columns)
    return pa.table([pa.array(arrays[field.name]).cast(field.type) for field in of], schema=of)


def words(numbers: NDArray[Any], names: Sequence[str], *, present: NDArray[np.bool_] | None = None) -> pa.Array:
    """Name of each number; null if it is not `present` or unknown."""
    absent = (numbers >= len(names)) | (numbers < 0)
    if present is not None:
        absent = absent | ~present
    indices = pa.array(np.where(absent, 0, numbers).astype(np.int32), mask=absent)
    return pa.DictionaryArray.from_arrays(indices, texts(names))


def texts(values: Iterable[str | None]) -> pa.Array:
    """Strings. Characters that are not Unicode are replaced."""
    return pa.array([None if text is None else text.encode(errors="replace").decode() for text in values], pa.string())


def same(value: str, length: int) -> pa.Array:
    """One name `length` times."""
    return words(np.zeros(length, dtype=np.int32), [value])
