"""`make validate-exports`: the Parquet export, read by DuckDB in an environment of its own.

A reader that does not install is reported as not validated.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.environments import environment
from tests.exporters.runs import two_ranks
from traincope import open_run
from traincope.events import OPEN, Kind
from traincope.timeline import Timeline
from traincope_exporters.parquet import write_parquet

DEMO = "sample_runs/demo"
OF_TWO_RANKS = [["tp", "collective", 800], ["tp", "stall", 800]]
"""Two all_gathers of 300 ns on rank 0, and two of 100 ns on rank 1, all exposed (`tests.exporters.runs`)."""
DUCKDB = """
import duckdb, json, sys
files = f"'{sys.argv[1]}/*/*.parquet'"
chosen = f"from {files} where kind in ('collective', 'stall')"
rows = duckdb.sql(f"select axis, kind, sum(duration_ns) {chosen} group by all order by 1, 2").fetchall()
((count, ranks),) = duckdb.sql(f"select count(*), sum(rank) from {files}").fetchall()
print(json.dumps([rows, count, ranks]))
"""
"""Prints ns of collectives and stalls by axis, the number of events, and the sum of their ranks."""


def main() -> int:
    python = environment("exports", "duckdb", on_ours=True)
    if python is None:
        print("duckdb: not validated, because it does not install")
        return 0
    problems = [
        problem
        for timeline, known in ((two_ranks(), OF_TWO_RANKS), (open_run(DEMO), None))
        if (problem := read(timeline, python, known=known))
    ]
    print("\n".join(problems) or "duckdb: validated")
    return 1 if problems else 0


def read(timeline: Timeline, python: Path, *, known: list[list[object]] | None) -> str:
    """Return the difference to the sums that are known on paper, or to those of the recorded events."""
    with tempfile.TemporaryDirectory() as folder:
        write_parquet(timeline, Path(folder))
        ended = subprocess.run([str(python), "-c", DUCKDB, folder], capture_output=True, text=True, check=False)
    if ended.returncode:
        return f"duckdb: FAILED:\n{ended.stderr}"
    found, expected = json.loads(ended.stdout), [known or sums(timeline), *totals(timeline)]
    return "" if found == expected else f"duckdb: FAILED: it read {found}, not {expected}"


def sums(timeline: Timeline) -> list[list[object]]:
    """The rows of the query, from the recorded events."""
    by_kind: dict[tuple[str, str], int] = {}
    for rank in timeline.ranks:
        for records in rank.threads.values():
            chosen = np.isin(records["kind"], (Kind.COLLECTIVE, Kind.STALL)) & (records["end_ns"] != OPEN)
            for record in records[chosen]:
                key = rank.axis(int(record["group"])), Kind(int(record["kind"])).name.lower()
                by_kind[key] = by_kind.get(key, 0) + int(record["end_ns"] - record["start_ns"])
    return sorted([axis, kind, length] for (axis, kind), length in by_kind.items())


def totals(timeline: Timeline) -> tuple[int, int]:
    """Number of events, and the sum of their ranks."""
    counts = {rank.rank: sum(map(len, rank.threads.values())) for rank in timeline.ranks}
    return sum(counts.values()), sum(rank * count for rank, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())
