"""Columns of a table of operations, from CSV or Parquet, under one name each and type-checked."""

import csv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from traincope.arrays import Floats, Ints
from traincope.errors import DataError
from traincope.ingest.foreign import foreign_format
from traincope.store.job.manifests import MAX_RANKS
from traincope.store.segments.compacted import import_pyarrow
from traincope.store.separators import column_name, separator
from traincope.store.side_tables.operations import NO_MICROBATCH, OperationKind

SUFFIXES = (".csv", ".parquet")
NAMES = {
    "dp_rank": ("dp_rank",),
    "stage": ("stage",),
    "rank": ("rank",),
    "step": ("step",),
    "optype": ("optype",),
    "start": ("start_ts", "start"),
    "duration": ("duration",),
    "microbatch": ("mb_id", "microbatch"),
    "chunk": ("mc", "chunk"),
    "sequence": ("seq_id", "sequence"),
}
"""Column -> its names in tables."""
OPTIONAL = ("chunk", "sequence")
"""Columns with a default: chunk 0, and the order of the starts."""
LIMITS = {"dp_rank": MAX_RANKS, "stage": MAX_RANKS, "rank": MAX_RANKS, "step": 1 << 31, "chunk": 1 << 16}
"""Column of whole numbers -> the first number that is too large."""
LATEST_SECONDS = 9e9
"""Bound of `start`: 63 bits hold that many seconds in nanoseconds."""
LONGEST_SECONDS = 1e8
"""Bound of `duration`."""
LONGEST_USUAL_SECONDS = 3600.0
"""Median duration of a microbatch's computations, above which the numbers are not seconds."""
LAST_IN_ORDER = 1 << 53
"""Bound of `seq_id`: larger numbers of 64 bits are not exact as floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of a table as they are in the file."""

    path: Path
    optype: tuple[str, ...]
    dp_rank: Ints
    stage: Ints
    rank: Ints
    chunk: Ints
    step: Ints
    microbatch: Ints
    sequence: Ints
    """Order among operations of the same type that begin together; 0 if the table does not give it."""
    start_ns: Ints
    end_ns: Ints


def read_table(path: Path) -> Table:
    """Read a table. Raises DataError for another file, MissingDependencyError for Parquet without pyarrow.

    `start` and `duration` are seconds. `microbatch` is necessary for forward and backward computations only.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist, or is a folder")
    columns = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    if not len(columns["optype"]):
        raise DataError(f"{path} contains no row, so there is nothing to import")
    optype = tuple(str(name).strip() for name in columns["optype"])
    numbers = {name: _floats(path, name, columns[name]) for name in columns if name != "optype"}
    start, duration = numbers["start"], numbers["duration"]
    _require(path, "start", np.abs(start) < LATEST_SECONDS, start)
    _require(path, "duration", (duration >= 0) & (duration < LONGEST_SECONDS), duration)
    _require_seconds(path, duration[np.isin(optype, (OperationKind.FORWARD, OperationKind.BACKWARD))])
    start_ns = np.rint(start * 1e9).astype(np.int64)
    zeros = np.zeros(len(optype), dtype=np.int64)
    # What has no chunk has -1 there; it is not used for these operations.
    chunk = np.maximum(np.nan_to_num(numbers.get("chunk", zeros.astype(np.float64)), nan=0.0), 0.0)
    sequence = np.nan_to_num(numbers.get("sequence", zeros.astype(np.float64)), nan=0.0, posinf=np.inf)
    _require(path, "seq_id", np.abs(sequence) < LAST_IN_ORDER, sequence)
    return Table(
        path=path,
        optype=optype,
        **{name: _whole(path, name, numbers[name]) for name in ("dp_rank", "stage", "rank", "step")},
        chunk=_whole(path, "chunk", chunk),
        microbatch=_microbatches(path, optype, numbers["microbatch"]),
        sequence=sequence.astype(np.int64),
        start_ns=start_ns,
        end_ns=start_ns + np.rint(duration * 1e9).astype(np.int64),
    )


def _require_seconds(path: Path, computed: Floats) -> None:
    """Require computations of microbatches that take seconds: those of an hour are in another unit."""
    usual = float(np.median(computed)) if len(computed) else 0.0
    if usual > LONGEST_USUAL_SECONDS:
        raise DataError(
            f"a forward or backward of {path} takes {usual:,.0f} s in the median; start and duration are in seconds: "
            "divide those in us by 1,000,000, and those in ms by 1,000"
        )


def _parquet(path: Path) -> dict[str, Any]:
    arrow, parquet = import_pyarrow(f"read {path}")
    try:
        present = _chosen(path, parquet.read_schema(path).names)
        table = parquet.read_table(path, columns=list(present.values()))
        columns = {name: table.column(column) for name, column in present.items()}
        text = {"optype": columns.pop("optype").to_pylist()}
        return text | {name: column.to_numpy() for name, column in columns.items()}
    except (OSError, arrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


def _csv(path: Path) -> dict[str, Any]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, delimiter=separator(file), strict=True)
            header = list(map(column_name, next(rows, [])))
            present = _chosen(path, header)
            at = {name: header.index(column) for name, column in present.items()}
            values: dict[str, list[object]] = {name: [] for name in present}
            for number, row in enumerate((row for row in rows if row), start=1):
                if len(row) != len(header):
                    raise DataError(f"row {number} of {path} has {len(row)} fields, the header has {len(header)}")
                for name, column in at.items():
                    values[name].append(row[column])
            return dict(values)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as CSV: {error}") from error


def _chosen(path: Path, header: Sequence[str]) -> Mapping[str, str]:
    """Return column -> its name in this file."""
    if not header:
        raise DataError(f"{path} is empty, so there is nothing to import")
    chosen = {}
    for name, spellings in NAMES.items():
        found = [spelling for spelling in spellings if spelling in header]
        if found:
            chosen[name] = found[0]
        elif name not in OPTIONAL:
            what = foreign_format(path)
            if what is not None:
                raise DataError(f"{path} is {what}, which is not read; import a trace of torch's profiler")
            if not any(spelling in header for spellings in NAMES.values() for spelling in spellings):
                raise DataError(
                    f"{path} is neither a table of operations nor a logbook: its columns are {', '.join(header)}"
                )
            raise DataError(f"{path} has no column {' or '.join(spellings)}; its columns are {', '.join(header)}")
    return chosen


def _floats(path: Path, name: str, values: Sequence[object]) -> Floats:
    """Return numbers, NaN for an empty field."""
    with suppress(TypeError, ValueError):
        return np.array(values, dtype=np.float64)
    numbers = np.empty(len(values))
    for at, value in enumerate(values):
        try:
            numbers[at] = np.nan if value is None or value == "" else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise DataError(f"row {at + 1} of {path} has {value!r} as {name}, not a number") from None
    return numbers


def _whole(path: Path, name: str, values: Floats) -> Ints:
    _require(path, name, (values >= 0) & (values < LIMITS[name]) & (values == np.floor(values)), values)
    return values.astype(np.int64)


def _microbatches(path: Path, optype: Sequence[str], values: Floats) -> Ints:
    computes = np.isin(optype, (OperationKind.FORWARD, OperationKind.BACKWARD))
    valid = (values >= 0) & (values < MAX_RANKS) & (values == np.floor(values))
    _require(path, "microbatch", ~computes | valid, values)
    return np.where(computes & valid, np.nan_to_num(values), NO_MICROBATCH).astype(np.int64)


def _require(path: Path, name: str, valid: object, values: Floats) -> None:
    wrong = np.flatnonzero(~np.asarray(valid, dtype=bool))
    if len(wrong):
        at = int(wrong[0])
        raise DataError(f"row {at + 1} of {path} has {values[at]:g} as {name}; correct it, or leave out its step")
