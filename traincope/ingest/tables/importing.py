"""Make a run directory of a table of operations that every command opens."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from traincope.errors import UsageError
from traincope.ingest.cards import NOTHING_GIVEN, Given, rank_card, run_card, write_card
from traincope.ingest.tables.reading import read_table
from traincope.ingest.tables.records import Worker, worker_records
from traincope.ingest.tables.whole_steps import whole_steps
from traincope.private_files import make_directory
from traincope.store.layout import (
    GROUPS_FILE,
    NAMES_FILE,
    OPERATIONS_FILE,
    RANK_FILE,
    RUN_FILE,
    attempt_directory,
    rank_directory,
    segment_path,
)
from traincope.store.segments.segments import segment_content
from traincope.store.side_tables.operations import Operations, write_operations
from traincope.topology import PIPELINE_AXIS
from traincope.whole_files import written_aside

HOST = "imported"
"""Name of the one host: all rows of a table share one clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTable:
    """Result of an imported table."""

    num_operations: int
    num_replicas: int
    num_stages: int
    num_steps: int
    left_out: dict[int, str]
    """Number of each step that was left out -> why."""
    unknown: dict[str, int]
    """Unknown type of operation -> its number of rows."""
    idle_messages: int
    """Sends and receives that never ran, and were dropped."""
    laid_out: bool
    """The steps were laid one after the other."""


def import_table(path: Path, target: Path, *, given: Given = NOTHING_GIVEN) -> ImportedTable:
    """Make the run directory `target`, which must not exist, of a table in CSV or Parquet.

    Raises DataError for another file, or one without a whole step, MissingDependencyError for Parquet without pyarrow,
    UsageError if the directory cannot be made. On an error nothing remains of it.
    """
    if target.exists():
        raise UsageError(f"{target} exists already; choose another directory with -o")
    whole = whole_steps(read_table(path))
    operations = whole.operations
    try:
        with written_aside(target) as new_path:
            make_directory(new_path)
            _write(operations, new_path, name=target.name, given=given)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    return ImportedTable(
        num_operations=len(operations),
        num_replicas=operations.num_replicas,
        num_stages=operations.num_stages,
        num_steps=len(set(operations.step.tolist())),
        left_out=whole.left_out,
        unknown=dict(Counter(operations.kinds[kind] for kind in operations.kind[~operations.known].tolist())),
        idle_messages=whole.idle_messages,
        laid_out=whole.laid_out,
    )


def _write(operations: Operations, target: Path, *, name: str, given: Given) -> None:
    for worker in worker_records(operations):
        _write_rank(worker, rank_directory(target, attempt=0, rank=worker.rank), given=given)
    write_operations(attempt_directory(target, 0) / OPERATIONS_FILE, operations)
    card = run_card(
        name,
        world_size=int(operations.rank.max()) + 1,
        mesh={PIPELINE_AXIS: operations.num_stages, "dp": operations.num_replicas},
        began_ns=int(operations.start_ns.min()),
        given=given,
    )
    write_card(target / RUN_FILE, card)


def _write_rank(worker: Worker, directory: Path, *, given: Given) -> None:
    make_directory(directory)
    segment_path(directory, thread="main", index=0).write_bytes(segment_content(worker.records))
    groups = [{"key": g.key, "axis": g.axis, "rule": g.rule, "ranks": list(g.ranks)} for g in worker.groups]
    for file, values in ((NAMES_FILE, worker.names), (GROUPS_FILE, groups)):
        lines = (json.dumps([number, value]) + "\n" for number, value in enumerate(values))
        (directory / file).write_text("".join(lines), encoding="utf-8")
    card = rank_card(
        worker.rank,
        coords=worker.coords,
        host=HOST,
        started_ns=int(worker.records["start_ns"].min()),
        ended_ns=int(worker.records["end_ns"].max()),
        device={} if given.gpu is None else {"name": given.gpu, "count": 1},
    )
    write_card(directory / RANK_FILE, card)
