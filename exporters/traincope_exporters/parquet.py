"""Export of all events as Parquet, one directory per rank, for DuckDB, Spark, Polars and pandas.

    RUN.parquet/rank=0/records.parquet

    select axis, name, sum(duration_ns) / 1e9 from 'RUN.parquet/*/*.parquet' where kind = 'collective' group by all

One row per event, thread by thread, in order of start: the table `records` of `traincope.tables`. The rank is in the
directory name, as in Hive. Times are ns of wall time since the epoch; all ranks share one axis. Null marks a missing
value: the end of an open event, the step of an event outside of steps.
"""

from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]

from traincope.errors import RunDirectoryError
from traincope.report.exports import DirectoryExport
from traincope.tables.records import RECORD_COLUMNS, Details, rank_records
from traincope.tables.view import WORDS, schema, typed
from traincope.timeline import RankTimeline, Timeline, each_rank

DELTAS = ("start_ns", "duration_ns", "sequence")
"""Columns whose neighbouring values differ little."""


def write_parquet(timeline: Timeline, directory: Path) -> None:
    """Write one file per rank. Raises RunDirectoryError if no rank recorded an event."""
    details = {rank.rank: rank.details for rank in timeline.run.ranks}
    _write(((rank, details[rank.rank]) for rank in timeline.ranks), directory, run=timeline.run.path)


def write_parquet_of_ranks(run: Path, directory: Path) -> None:
    """Write the same files from a run directory, and hold the records of one rank at a time."""
    _write(((rank, records.details) for rank, records in each_rank(run)), directory, run=run)


def _write(ranks: Iterable[tuple[RankTimeline, Details]], directory: Path, *, run: Path) -> None:
    written = False
    for rank, details in ranks:
        rank_directory = directory / f"rank={rank.rank}"
        rank_directory.mkdir()
        _write_rank(rank, rank_directory / "records.parquet", details=details)
        written = True
        del rank, details  # before the next rank is read
    if not written:
        raise RunDirectoryError(f"{run} holds no records; see its kernel traces with --to perfetto")


def _write_rank(rank: RankTimeline, path: Path, *, details: Details) -> None:
    encodings = dict.fromkeys(DELTAS, "DELTA_BINARY_PACKED")
    words = [column.name for column in RECORD_COLUMNS if column.type == WORDS]
    with pq.ParquetWriter(
        path, schema(RECORD_COLUMNS), compression="zstd", use_dictionary=words, column_encoding=encodings
    ) as writer:
        for columns in rank_records(rank, details=details):
            writer.write_table(typed(RECORD_COLUMNS, columns))


EXPORT = DirectoryExport(
    suffix="parquet",
    write=write_parquet,
    hint="duckdb, Spark, Polars, or pandas.read_parquet(DIRECTORY)",
    write_ranks=write_parquet_of_ranks,
)
