"""Cost of reporting a large run, and of SQL on it: `python -m benchmarks.report`.

Writes a run of 64 ranks and 10 million events, and one with a million collectives, and runs `traincope report` and
`traincope sql` on them in other processes.
Wall time and peak memory are of these processes, with the interpreter's start. Budgets are reported, never asserted,
because the machine may be noisy.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.synthetic import Size, write_large_run

SAMPLE = Path(__file__).parents[1] / "sample_runs" / "demo"
SIZE = Size(shards=32, repeats=56)
SQL_SIZE = Size(shards=32, repeats=20)
"""A run with a million collectives."""
WALL_BUDGET_S = 10.0
MEMORY_BUDGET_GIB = 2.0
ROUNDS = 3
QUERIES = {
    "metrics": "select name, count(*) as n from metrics group by name",
    "spans": "select name, count(*) as n, sum(duration_ns) as ns from spans group by name",
    "collectives": "select axis, operation, count(*) as n, sum(bytes) as bytes from collectives group by all",
    "ledger": "select term, sum(ns) as ns from ledger where counted group by term",
}
"""View -> a query that reads all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one process, from its start to its end."""

    wall_s: float
    cpu_s: float
    peak_gib: float


def main() -> None:
    """Write, measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        run, asked, out = (str(Path(directory) / name) for name in ("large", "asked", "out"))
        events = write_large_run(SAMPLE, Path(run), size=SIZE), write_large_run(SAMPLE, Path(asked), size=SQL_SIZE)
        costs = {
            f"report of {events[0]:,} events": [_cost("report", run, "-o", out) for _ in range(ROUNDS)],
            **{
                f"sql on {view} of {events[1]:,} events": [_cost("sql", asked, query, "-o", out)]
                for view, query in QUERIES.items()
            },
        }
    _show(costs)


def _cost(*words: str) -> Cost:
    command = [sys.executable, "-m", "traincope.cli.main", *words]
    start = time.perf_counter()
    child = subprocess.Popen(command)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(wall_s=time.perf_counter() - start, cpu_s=cpu_s, peak_gib=usage.ru_maxrss / (1 << 20))


def _show(costs: Mapping[str, Sequence[Cost]]) -> None:
    """Print the median of the times and the highest peak of each command. Only the report has budgets."""
    table = Table(title=f"64 ranks ({os.cpu_count()} cores)", box=None)
    for heading in ("command", "wall time, s", "spread", "CPU, s", "peak memory, GiB", ""):
        table.add_column(heading, justify="left" if heading == "command" else "right")
    for command, of_command in costs.items():
        walls, cpu = sorted(cost.wall_s for cost in of_command), sorted(cost.cpu_s for cost in of_command)
        wall, peak = walls[len(walls) // 2], max(cost.peak_gib for cost in of_command)
        within = "within" if wall <= WALL_BUDGET_S and peak <= MEMORY_BUDGET_GIB else "MISSED"
        budget = f"{within} {WALL_BUDGET_S:g} s, {MEMORY_BUDGET_GIB:g} GiB" if command.startswith("report") else ""
        spread = f"{walls[0]:.2f}-{walls[-1]:.2f}"
        table.add_row(command, f"{wall:.2f}", spread, f"{cpu[len(cpu) // 2]:.2f}", f"{peak:.2f}", budget)
    Console().print(table)


if __name__ == "__main__":
    main()
