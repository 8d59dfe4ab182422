"""All records as Parquet, a directory a rank, for DuckDB, Spark, Polars and pandas.

    RUN.parquet/rank=0/records.parquet

    select axis, name, sum(duration_ns) / 1e9 from 'RUN.parquet/*/*.parquet' where kind = 'collective' group by all

One row a record (its rank is the directory's, as Hive has it), thread by thread, in order of begin; times are ns of
wall time since the epoch, of all ranks on one axis. Null is what a record does not have: an end that was never seen, a
step outside of steps.
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
from traincope.timeline import RankTimeline, Timeline
from traincope_exporters.exports import DirectoryExport

Details = Mapping[int, Mapping[str, Any]]
Columns = dict[str, Any]
"""Arrays of numpy or pyarrow by name."""

ROWS_AT_ONCE = 1 << 20
"""Of a row group."""
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
        pa.field("peer", pa.int32()),
        pa.field("tag", pa.int32()),
        pa.field("flags", pa.uint16(), nullable=False),
        pa.field("schedule", WORDS),
        pa.field("value", pa.int64()),
        pa.field("scalar", pa.float64()),
        pa.field("details", pa.string()),
    ]
)
"""What each means by kind stands in `traincope.events`; `scalar` is what `run.log()` was given, `details` JSON of what
an event carries."""
DELTAS = ("start_ns", "duration_ns", "sequence")
"""Columns whose neighbours differ by little."""

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
)
ON_GROUP = (Kind.COLLECTIVE, Kind.STALL)
COUNTED = (*ON_GROUP, Kind.ACTION)
TAGGED = (*ON_GROUP, Kind.FLOPS)
VALUED = (*ON_GROUP, Kind.STEP, Kind.CLOCK, Kind.DROPPED, Kind.MEMORY, Kind.FLOPS, Kind.GPU)
INSTANTS = (Kind.EVENT, Kind.CLOCK, Kind.DROPPED, Kind.SCALAR, Kind.MEMORY, Kind.FLOPS, Kind.GPU)
"""Kinds that have no length."""


def write_parquet(timeline: Timeline, directory: Path) -> None:
    """Raises RunDirectoryError where no rank left a record."""
    if not timeline.ranks:
        raise RunDirectoryError(f"{timeline.run.path} holds no records; see its kernel traces with --to perfetto")
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    for rank in timeline.ranks:
        own = directory / f"rank={rank.rank}"
        own.mkdir()
        _write_rank(rank, own / "records.parquet", details=details[rank.rank])


def _write_rank(rank: RankTimeline, path: Path, *, details: Details) -> None:
    encodings = dict.fromkeys(DELTAS, "DELTA_BINARY_PACKED")
    words = [field.name for field in SCHEMA if field.type == WORDS]
    with pq.ParquetWriter(path, SCHEMA, compression="zstd", use_dictionary=words, column_encoding=encodings) as writer:
        for table in tables(rank, details=details):
            writer.write_table(table)


def tables(rank: RankTimeline, *, details: Details) -> Iterator[pa.Table]:
    """A rank's records, so many at once as a row group holds; `details` of its events by number."""
    for thread, records in rank.threads.items():
        for first in range(0, len(records), ROWS_AT_ONCE):
            yield _table(rank, thread, records[first : first + ROWS_AT_ONCE], details=details)


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
        "peer": pa.array(peer, mask=~counted | (peer == NO_PEER)),
        "tag": pa.array(records["tag"], mask=~np.isin(kind, TAGGED)),
        "value": pa.array(value, mask=~np.isin(kind, VALUED)),
        "scalar": pa.array(np.ascontiguousarray(value).view(np.float64), mask=~logged),
    }


def _details(records: NDArray[np.void], details: Details) -> pa.Array:
    texts: list[str | None] = [None] * len(records)
    for row in np.flatnonzero(records["kind"] == Kind.EVENT).tolist():
        told = details.get(int(records["group"][row]))
        texts[row] = None if told is None else json.dumps(told, sort_keys=True, default=str)
    return pa.array(texts, type=pa.string())


def _words(
    numbers: NDArray[Any], words: Sequence[str], *, present: NDArray[np.bool_] | None = None
) -> pa.DictionaryArray:
    """The word of each number, null where it is not `present` or has none. A name is data: not all are Unicode."""
    absent = numbers >= len(words)
    if present is not None:
        absent = absent | ~present
    indices = pa.array(np.where(absent, 0, numbers).astype(np.int32), mask=absent)
    plain = [word.encode(errors="replace").decode() for word in words]
    return pa.DictionaryArray.from_arrays(indices, pa.array(plain, type=pa.string()))


def _lower(names: type[Kind] | type[Phase]) -> list[str]:
    """By number."""
    return [names(number).name.lower() if number in list(names) else "" for number in range(max(names) + 1)]


EXPORT = DirectoryExport(
    suffix="parquet", write=write_parquet, hint="duckdb, Spark, Polars, or pandas.read_parquet(DIRECTORY)"
)
