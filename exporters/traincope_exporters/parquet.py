"""Export of all events as Parquet, one directory per rank, for DuckDB, Spark, Polars and pandas.

    RUN.parquet/rank=0/records.parquet

    select axis, name, sum(duration_ns) / 1e9 from 'RUN.parquet/*/*.parquet' where kind = 'collective' group by all

One row per event, thread by thread, in order of start: the table `records` of `traincope.tables`. The rank is in the
directory name, as in Hive. Times are ns of wall time since the epoch; all ranks share one axis. Null marks a missing
value: the end of an open event, the step of an event outside of steps.
"""

from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]

from traincope.errors import RunDirectoryError
from traincope.report.exports import DirectoryExport
from traincope.tables.records import RECORD_COLUMNS, Details, rank_records
from traincope.tables.view import WORDS, schema, typed
from traincope.timeline import RankTimeline, Timeline

DELTAS = ("start_ns", "duration_ns", "sequence")
"""Columns whose neighbouring values differ little."""


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
    words = [column.name for column in RECORD_COLUMNS if column.type == WORDS]
    with pq.ParquetWriter(
        path, schema(RECORD_COLUMNS), compression="zstd", use_dictionary=words, column_encoding=encodings
    ) as writer:
        for columns in rank_records(rank, details=details):
            writer.write_table(typed(RECORD_COLUMNS, columns))


EXPORT = DirectoryExport(
    suffix="parquet", write=write_parquet, hint="duckdb, Spark, Polars, or pandas.read_parquet(DIRECTORY)"
)
