"""Cost of reading a kernel trace: `python -m tests.bench.ingest [TRACE] [--hta PYTHON]`.

Reads a trace and partitions its GPU time, in separate processes that alternate: traincope, and with `--hta` also
HolisticTraceAnalysis. PYTHON is an interpreter with it (pip install HolisticTraceAnalysis; it needs pandas and Jupyter,
so it is not a dependency). CPU time and memory are counted after all imports. Without TRACE it reads the largest public
trace, or a synthetic one if those are missing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.ingest.writing import complete, kineto

TRACES = Path(__file__).parents[3] / "shared" / "traces"
ROUNDS = 5
SPEED_BUDGET = 10.0
MEMORY_BUDGET = 0.2

MEASURED = """
import json, resource, sys, time
from pathlib import Path
{imports}
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trace, before, start = Path(sys.argv[1]), peak(), time.process_time()
{work}
cpu_s = time.process_time() - start
print(json.dumps(dict(cpu_s=cpu_s, peak_kib=peak() - before, events=events, stored_bytes=stored_bytes)))
"""
OURS = MEASURED.format(
    imports="""
import tempfile
from traincope.analysis.kernels.gpu_partition import partition
from traincope.ingest import read_kineto
from traincope.store.traces import write_trace
""",
    work="""
traced = read_kineto(trace)
parts = list(partition(0, traced))
events = traced.info.num_read
spent = time.process_time()
with tempfile.TemporaryDirectory() as directory:
    write_trace(Path(directory) / "trace-000.npz", traced)
    stored_bytes = (Path(directory) / "trace-000.npz").stat().st_size
start += time.process_time() - spent
""",
)
THEIRS = MEASURED.format(
    imports="import logging\nfrom hta.trace_analysis import TraceAnalysis\nlogging.disable(logging.CRITICAL)",
    work="""
analysis = TraceAnalysis(trace_files={0: str(trace)}, trace_dir=str(trace.parent))
analysis.get_temporal_breakdown(visualize=False)
events = stored_bytes = 0
""",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one process."""

    cpu_s: float
    peak_kib: int
    events: int
    stored_bytes: int


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="cost of reading a kernel trace")
    parser.add_argument("trace", type=Path, nargs="?")
    parser.add_argument("--hta", metavar="PYTHON", help="an interpreter that has HolisticTraceAnalysis")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        trace = arguments.trace or _largest() or _synthetic(Path(directory))
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(_cost(sys.executable, OURS, trace))
            if arguments.hta:
                theirs.append(_cost(arguments.hta, THEIRS, trace))
    _show(trace.name, ours, theirs)


def _largest() -> Path | None:
    return max(TRACES.rglob("*.json.gz"), key=lambda path: path.stat().st_size, default=None)


def _synthetic(directory: Path) -> Path:
    """200,000 events of a GPU and its host."""
    events = [
        complete(f"kernel_{at % 50}", f"{10 * at}.125", "7.250", cat="kernel" if at % 4 else "cpu_op", correlation=at)
        for at in range(200_000)
    ]
    path = directory / "synthetic.json"
    path.write_text(kineto(events))
    return path


def _cost(python: str, code: str, trace: Path) -> Cost:
    child = subprocess.run([python, "-c", code, str(trace)], check=True, capture_output=True, text=True)
    return Cost(**json.loads(child.stdout.splitlines()[-1]))


def _show(name: str, ours: list[Cost], theirs: list[Cost]) -> None:
    """Print median times, traincope's highest peak memory and the other's lowest."""
    cpu_s, peak_kib = statistics.median(cost.cpu_s for cost in ours), max(cost.peak_kib for cost in ours)
    events, stored = ours[0].events, ours[0].stored_bytes
    table = Table(title=f"{name}: {events:,} events ({os.cpu_count()} cores)", box=None)
    for heading in ("what", "measured", "budget", ""):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    table.add_row("read and partitioned, events per second of CPU", f"{events / cpu_s:,.0f}")
    table.add_row("memory, bytes per event", f"{1024 * peak_kib / events:,.0f}")
    table.add_row("imported, bytes per event on disk", f"{stored / events:.1f}")
    if theirs:
        faster = statistics.median(cost.cpu_s for cost in theirs) / cpu_s
        memory = peak_kib / min(cost.peak_kib for cost in theirs)
        table.add_row(
            "times as fast as HolisticTraceAnalysis",
            f"{faster:.1f}",
            f"{SPEED_BUDGET:g}",
            _judged(faster >= SPEED_BUDGET),
        )
        table.add_row("share of its memory", f"{memory:.2f}", f"{MEMORY_BUDGET:g}", _judged(memory <= MEMORY_BUDGET))
    Console().print(table)
    if not theirs:
        Console().print("no comparison: --hta PYTHON names an interpreter that has HolisticTraceAnalysis")


def _judged(within: bool) -> str:
    return "within" if within else "MISSED"


if __name__ == "__main__":
    main()
