"""Cost of a job report per number of ranks: `python -m benchmarks.scale.bench [RANKS ...] [--out DIRECTORY]`.

Records one rank of each pipeline stage of a 16,384-rank mesh on torch's fake backend, replays it on 64 to 2,048 ranks
(or on RANKS) with a planted straggler and a planted stop, and runs `traincope report` on each run. From 1,024 ranks on
it also opens the first page of `traincope view`. Wall and CPU time and peak memory are those of the command; the peak
is that of its largest process. Budgets are printed, never asserted. The culprits must be the planted ones: otherwise
it ends with an error.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.scale.clone import write_run
from benchmarks.scale.program import Program, balanced, read_program
from benchmarks.scale.recording import record_stages
from benchmarks.scale.replay import Plan, replay
from traincope.store.layout import ROWS_FILE
from traincope.store.side_tables.row_thinning import COMPRESSION, PLAIN_ROWS
from traincope.summaries.reading import MANY_RANKS

SIZES = (64, 256, 1024, 2048)
STEPS, DETAILED = 72, 6
BUDGETS = {2048: (10.0, 1.0), 16_384: (30.0, 2.0)}
"""Ranks -> seconds of wall time, and GiB."""
FEW_RANKS = 256
"""Up to this size all steps keep their records, and the report reads all events too."""
TWO_DAYS_STEPS = 2 * 24 * 3600 // 5
"""Steps of 5 s."""
ROWS_BUDGET_GB = 50.0
STARTER = """
import json, os, subprocess, sys, time
start = time.perf_counter()
child = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(child.pid, 0)
wall_s = time.perf_counter() - start
if status:
    sys.exit(f"{sys.argv[1:]} ended with status {status}")
print(json.dumps([wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]))
"""
"""A process counts the peak of the one that started it, so a small one starts the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One report, or one first page of the viewer."""

    detail: str
    """`--detail` of the report; `view`: the viewer's page."""
    ranks: int
    wall_s: float
    cpu_s: float
    peak_gib: float
    named: dict[str, list[int]]
    """Kind of finding -> ranks."""


def main() -> None:
    """Record, replay, measure and print."""
    parser = argparse.ArgumentParser(description="cost of a job report per number of ranks")
    parser.add_argument("ranks", type=int, nargs="*", default=SIZES)
    parser.add_argument("--out", type=Path, help="directory for the runs (default: a temporary one)")
    arguments = parser.parse_args()
    try:
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
        place = tempfile.TemporaryDirectory(dir=arguments.out)
    except OSError as error:
        parser.error(f"cannot make a directory in {arguments.out}: {error.strerror}; give another with --out")
    with place as directory:
        programs = balanced([read_program(path) for path in record_stages(Path(directory) / "recorded")])
        costs, wrong, row_bytes = [], [], 0.0
        for ranks in arguments.ranks:
            run, plan = Path(directory) / f"run-{ranks}", _plan(ranks)
            _write(run, programs, plan)
            row_bytes = _row_bytes(run, plan)
            for detail in ("rows", "all") if ranks <= FEW_RANKS else ("rows",):
                cost = _report(run, ranks, detail)
                costs.append(cost)
                wrong += _wrong(cost, plan)
            if ranks >= MANY_RANKS:
                costs.append(_first_page(run, ranks))
            shutil.rmtree(run)
    _show(costs, row_bytes)
    if wrong:
        raise SystemExit("\n".join(wrong))


def _plan(ranks: int) -> Plan:
    return Plan(ranks=ranks, steps=STEPS, detailed=STEPS if ranks <= FEW_RANKS else DETAILED)


def _write(run: Path, programs: tuple[Program, ...], plan: Plan) -> None:
    start = time.perf_counter()
    records = write_run(run, programs, replay(programs, plan), plan)
    print(f"{plan.ranks:,} ranks, {records:,} records: written in {time.perf_counter() - start:.0f} s", flush=True)


def _row_bytes(run: Path, plan: Plan) -> float:
    """Mean bytes on disk per row of two days, all but the newest of which are compressed. The rows of 16 ranks stand
    for one rank's: so the compressor finds as little in common between terms as in a long run.
    """
    files = sorted(run.glob(f"attempt-000/rank-*/{ROWS_FILE}"))[:: max(plan.ranks // 16, 1)]
    content = b"".join(file.read_bytes() for file in files)
    rows = content.count(b"\n")
    plain, compressed = len(content) / rows, len(gzip.compress(content, COMPRESSION)) / rows
    return (PLAIN_ROWS * plain + (TWO_DAYS_STEPS - PLAIN_ROWS) * compressed) / TWO_DAYS_STEPS


def _report(run: Path, ranks: int, detail: str) -> Cost:
    out = run / "report.json"
    words = ("report", str(run), "--detail", detail, "--format", "json", "-o", str(out))
    command = [sys.executable, "-m", "traincope.cli.main", *words]
    done = subprocess.run([sys.executable, "-c", STARTER, *command], check=True, capture_output=True, text=True)
    wall_s, cpu_s, peak_kib = json.loads(done.stdout)
    named: dict[str, list[int]] = {}
    for finding in json.loads(out.read_text())["verdict"]:
        named[finding["kind"]] = [*named.get(finding["kind"], []), *finding["ranks"]]
    return Cost(
        detail=detail,
        ranks=ranks,
        wall_s=wall_s,
        cpu_s=cpu_s,
        peak_gib=peak_kib / (1 << 20),
        named=named,
    )


def _first_page(run: Path, ranks: int) -> Cost:
    command = [sys.executable, "-m", "benchmarks.scale.first_page", str(run)]
    wall_s, cpu_s, peak_kib = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return Cost(detail="view", ranks=ranks, wall_s=wall_s, cpu_s=cpu_s, peak_gib=peak_kib / (1 << 20), named={})


def _wrong(cost: Cost, plan: Plan) -> list[str]:
    truth = {"hang": [plan.rank(*plan.stopped)], "straggler": [plan.rank(*plan.straggler)]}
    return [
        f"{cost.ranks:,} ranks, {cost.detail}: {kind} {cost.named.get(kind)}, planted {ranks}"
        for kind, ranks in truth.items()
        if cost.named.get(kind) != ranks
    ]


def _show(costs: list[Cost], row_bytes: float) -> None:
    table = Table(title=f"traincope report and view ({os.cpu_count()} cores)", box=None)
    for heading in ("ranks", "reads", "wall, s", "CPU, s", "CPU ms per rank", "peak, GiB", "hang", "straggler", ""):
        table.add_column(heading, justify="right")
    for cost in costs:
        wall_s, peak_gib = BUDGETS.get(cost.ranks, (0.0, 0.0))
        judged = "within" if cost.wall_s <= wall_s and cost.peak_gib <= peak_gib else "MISSED"
        table.add_row(
            *(f"{cost.ranks:,}", cost.detail, f"{cost.wall_s:.1f}", f"{cost.cpu_s:.1f}"),
            *(f"{1000 * cost.cpu_s / cost.ranks:.1f}", f"{cost.peak_gib:.2f}"),
            *(str(cost.named.get(kind, "")) for kind in ("hang", "straggler")),
            f"{judged} {wall_s:g} s, {peak_gib:g} GiB" if wall_s else "",
        )
    console = Console()
    console.print(table)
    total_gb = row_bytes * TWO_DAYS_STEPS * 16_384 / 1e9
    judged = "within" if total_gb <= ROWS_BUDGET_GB else "MISSED"
    console.print(
        f"rows: {row_bytes:.0f} bytes per rank and step; two days of steps of 5 s on 16,384 ranks: an estimated "
        f"{total_gb:.0f} GB, {judged} {ROWS_BUDGET_GB:.0f}"
    )


if __name__ == "__main__":
    main()
