"""Export of all events as Parquet, one directory per rank, for DuckDB, Spark, Polars and pandas.

    RUN.parquet/rank=0/records.parquet

    select axis, name, sum(duration_ns) / 1e9 from 'RUN.parquet/*/*.parquet' where kind = 'collective' group by all

One row per event, thread by thread, in order of start. The rank is in the directory name, as in Hive. Times are ns of
wall time since the epoch; all ranks share one axis. Null marks a missing value: the end of an open event, the step of
an event outside of steps.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from numpy.typing import NDArray

from traincope.errors import RunDirectoryError
from traincope.events import NO_PEER, NO_STEP, OPEN, Kind, Phase
from traincope.report.exports import DirectoryExport
from traincope.timeline import RankTimeline, Timeline

Details = Mapping[int, Mapping[str, Any]]
Columns = dict[str, Any]
"""Arrays of numpy or pyarrow by column name."""

ROWS_PER_GROUP = 1 << 20
"""Rows per row group."""
WORDS = pa.dictionary(pa.int32(), pa.string())
SCHEMA = pa.schema(
    [
        pa.field("thread", WORDS, nullable=False),
        pa.field("kind", WORDS, nullable=False),
        pa.field("start_ns", pa.int64(), nullable=False),
        pa.field("end_ns", pa.int64()),
        pa.field("duration_ns", pa.int64()),
        pa.field("step", pa.int32()),
        pa.field("phase", WORDS),
        pa.field("name", WORDS),
        pa.field("axis", WORDS),
        pa.field("group", WORDS),
        pa.field("sequence", pa.int64()),
        pa.field("window", pa.int64()),
        pa.field("peer", pa.int32()),
        pa.field("tag", pa.int32()),
        pa.field("flags", pa.uint16(), nullable=False),
        pa.field("schedule", WORDS),
        pa.field("value", pa.int64()),
        pa.field("scalar", pa.float64()),
        pa.field("details", pa.string()),
    ]
)
"""Columns of the table. `traincope.events` defines their meaning by kind. `scalar` is the value of `run.log()`,
`details` the details of an event as JSON.
"""
DELTAS = ("start_ns", "duration_ns", "sequence")
"""Columns whose neighbouring values differ little."""

NAMED = (
    Kind.PHASE,
    Kind.ACTION,
    Kind.COLLECTIVE,
    Kind.STALL,
    Kind.SPAN,
    Kind.EVENT,
    Kind.SCALAR,
    Kind.MEMORY,
    Kind.FLOPS,
    Kind.GPU,
    Kind.USAGE,
)
ON_GROUP = (Kind.COLLECTIVE, Kind.STALL)
COUNTED = (*ON_GROUP, Kind.ACTION)
TAGGED = (*ON_GROUP, Kind.FLOPS)
VALUED = (*ON_GROUP, Kind.STEP, Kind.CLOCK, Kind.DROPPED, Kind.MEMORY, Kind.FLOPS, Kind.GPU, Kind.USAGE)
INSTANTS = (Kind.EVENT, Kind.CLOCK, Kind.DROPPED, Kind.SCALAR, Kind.MEMORY, Kind.FLOPS, Kind.GPU, Kind.USAGE)
"""Kinds without a length."""


def write_parquet(timeline: Timeline, directory: Path) -> None:
    """Write one file per rank. Raises RunDirectoryError if no rank recorded an event."""
    if not timeline.ranks:
        raise RunDirectoryError(f"{timeline.run.path} holds no records; see its kernel traces with --to perfetto")
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    for rank in timeline.ranks:
        rank_directory = directory / f"rank={rank.rank}"
        rank_directory.mkdir()
        _write_rank(rank, rank_directory / "records.parquet", details=details[rank.rank])


def _write_rank(rank: RankTimeline, path: Path, *, details: Details) -> None:
    encodings = dict.fromkeys(DELTAS, "DELTA_BINARY_PACKED")
    words = [field.name for field in SCHEMA if field.type == WORDS]
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", use_dictionary=words, column_encoding=encodings) as writer:
        for table in tables(rank, details=details):
            writer.write_table(table)


def tables(rank: RankTimeline, *, details: Details) -> Iterator[pa.Table]:
    """Events of a rank, one table per row group. `details`: event number -> details."""
    for thread, records in rank.threads.items():
        for first in range(0, len(records), ROWS_PER_GROUP):
            yield _table(rank, thread, records[first : first + ROWS_PER_GROUP], details=details)


def _table(rank: RankTimeline, thread: str, records: NDArray[np.void], *, details: Details) -> pa.Table:
    columns = {
        "thread": _words(np.zeros(len(records), dtype=np.int32), [thread]),
        "flags": records["flags"],
        **_times(records),
        **_named(rank, records),
        **_numbers(records),
        "details": _details(records, details),
    }
    return pa.table([pa.array(columns[field.name]).cast(field.type) for field in SCHEMA], schema=SCHEMA)


def _times(records: NDArray[np.void]) -> Columns:
    start, end = records["start_ns"], records["end_ns"]
    still_open, instant = end == OPEN, np.isin(records["kind"], INSTANTS)
    return {
        "start_ns": start,
        "end_ns": pa.array(end, mask=still_open),
        "duration_ns": pa.array(end - start, mask=still_open | instant),
    }


def _named(rank: RankTimeline, records: NDArray[np.void]) -> Columns:
    kind, phase = records["kind"], records["phase"]
    named, grouped = np.isin(kind, NAMED), np.isin(kind, ON_GROUP)
    return {
        "kind": _words(kind, _lower(Kind)),
        "phase": _words(phase, _lower(Phase), present=phase != Phase.NONE),
        "name": _words(records["name"], rank.names, present=named),
        "axis": _words(records["group"], [group.axis for group in rank.groups], present=grouped),
        "group": _words(records["group"], [group.key for group in rank.groups], present=grouped),
        "schedule": _words(records["group"], rank.names, present=kind == Kind.ACTION),
    }


def _numbers(records: NDArray[np.void]) -> Columns:
    kind, step, peer, value = (records[name] for name in ("kind", "step", "peer", "value"))
    logged, counted = kind == Kind.SCALAR, np.isin(kind, COUNTED)
    return {
        "step": pa.array(step, mask=step == NO_STEP),
        "sequence": pa.array(records["sequence"], mask=~counted),
        "window": pa.array(records["window"], mask=~np.isin(kind, ON_GROUP)),
        "peer": pa.array(peer, mask=~counted | (peer == NO_PEER)),
        "tag": pa.array(records["tag"], mask=~np.isin(kind, TAGGED)),
        "value": pa.array(value, mask=~np.isin(kind, VALUED)),
        "scalar": pa.array(np.ascontiguousarray(value).view(np.float64), mask=~logged),
    }


def _details(records: NDArray[np.void], details: Details) -> pa.Array:
    texts: list[str | None] = [None] * len(records)
    for row in np.flatnonzero(records["kind"] == Kind.EVENT).tolist():
        event_details = details.get(int(records["group"][row]))
        texts[row] = None if event_details is None else json.dumps(event_details, sort_keys=True, default=str)
    return pa.array(texts, type=pa.string())


def _words(
    numbers: NDArray[Any], words: Sequence[str], *, present: NDArray[np.bool_] | None = None
) -> pa.DictionaryArray:
    """Word of each number; null if it is not `present` or unknown. Names that are not Unicode are replaced."""
    absent = numbers >= len(words)
    if present is not None:
        absent = absent | ~present
    indices = pa.array(np.where(absent, 0, numbers).astype(np.int32), mask=absent)
    plain = [word.encode(errors="replace").decode() for word in words]
    return pa.DictionaryArray.from_arrays(indices, pa.array(plain, type=pa.string()))


def _lower(names: type[Kind] | type[Phase]) -> list[str]:
    """Lower-case names by number."""
    return [names(number).name.lower() if number in list(names) else "" for number in range(max(names) + 1)]


EXPORT = DirectoryExport(
    suffix="parquet", write=write_parquet, hint="duckdb, Spark, Polars, or pandas.read_parquet(DIRECTORY)"
)
