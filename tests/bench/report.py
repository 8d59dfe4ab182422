"""Cost of reporting a large run: `python -m tests.bench.report`.

Writes a run of 64 ranks and 10 million events and runs `traincope report` on it in another process. Wall time and peak
memory are of that process, with the interpreter's start. Budgets are reported, never asserted, because the machine may
be noisy.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.synthetic import Size, write_large_run

SAMPLE = Path(__file__).parents[2] / "sample_runs" / "demo"
SIZE = Size(shards=32, repeats=56)
WALL_BUDGET_S = 10.0
MEMORY_BUDGET_GIB = 2.0
ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one process, from its start to its end."""

    wall_s: float
    peak_gib: float


def main() -> None:
    """Write, measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "large"
        records = write_large_run(SAMPLE, run, size=SIZE)
        costs = [_report(run, Path(directory) / "report.txt") for _ in range(ROUNDS)]
    _show(costs, records=records)


def _report(run: Path, out: Path) -> Cost:
    command = [sys.executable, "-m", "traincope.cli.main", "report", str(run), "-o", str(out)]
    start = time.perf_counter()
    child = subprocess.Popen(command)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return Cost(wall_s=time.perf_counter() - start, peak_gib=usage.ru_maxrss / (1 << 20))


def _show(costs: list[Cost], *, records: int) -> None:
    """Print the median of the times and the highest peak."""
    walls = sorted(cost.wall_s for cost in costs)
    table = Table(title=f"traincope report, 64 ranks, {records:,} events ({os.cpu_count()} cores)", box=None)
    for heading in ("what", "measured", "spread", "budget", ""):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    rows = (
        ("wall time, s", walls[len(walls) // 2], f"{walls[0]:.2f}-{walls[-1]:.2f}", WALL_BUDGET_S),
        ("peak memory, GiB", max(cost.peak_gib for cost in costs), "", MEMORY_BUDGET_GIB),
    )
    for name, measured, spread, budget in rows:
        table.add_row(name, f"{measured:.2f}", spread, f"{budget:g}", "within" if measured <= budget else "MISSED")
    Console().print(table)


if __name__ == "__main__":
    main()
