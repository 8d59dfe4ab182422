"""Cost of reading a kernel trace: `python -m benchmarks.ingest [TRACE] [--hta PYTHON]`.

Reads a trace and partitions its GPU time, in separate processes that alternate: traincope, and with `--hta` also
HolisticTraceAnalysis. PYTHON is an interpreter with it (pip install HolisticTraceAnalysis; it needs pandas and Jupyter,
so it is not a dependency). CPU time and memory are counted after all imports. Without TRACE it reads the
largest public trace, or a synthetic one if those are missing; `--synthetic N` reads a synthetic one of N events.
`--ranks N` imports a folder of N synthetic traces.

With `--hta`, it also compares wall times on eight copies: traincope imports them with two processes, and
HolisticTraceAnalysis reads them with one.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.ingest.writing import complete, kineto
from traincope.native.decoder import find_decoder

TRACES = Path(__file__).parents[2] / "shared" / "traces"
ROUNDS = 5
NUM_EVENTS = 300_000
"""Events of a synthetic trace."""
BLOCK, END = 10_000, "\n  ]"
SPEED_BUDGET = 10.0
TOGETHER_BUDGET = 20.0
MEMORY_BUDGET = 0.2
EVENTS_BUDGET = 1_500_000
"""Events per second of CPU."""
BYTES_BUDGET = 150
"""Bytes of memory per event."""

MEASURED = """
import json, re, sys, time
from pathlib import Path
{imports}
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text()).group(1))
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
from traincope.store.side_tables.traces import write_trace
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


COPIES = 8
TOGETHER = """
import sys, tempfile, time
from pathlib import Path
{imports}
paths = [Path(name) for name in sys.argv[1:]]
start = time.perf_counter()
{work}
print(time.perf_counter() - start)
"""
OURS_TOGETHER = TOGETHER.format(
    imports="from traincope.ingest import import_traces",
    work="""
with tempfile.TemporaryDirectory() as directory:
    import_traces(paths, Path(directory) / "run", processes=2)
""",
)
THEIRS_TOGETHER = TOGETHER.format(
    imports="import logging\nfrom hta.common.trace import Trace\nlogging.disable(logging.CRITICAL)",
    work="""
Trace(trace_files=dict(enumerate(map(str, paths))), trace_dir=".").parse_traces(use_multiprocessing=False)
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
    parser.add_argument("--ranks", type=int, metavar="N", help="import a folder of N synthetic traces")
    parser.add_argument("--synthetic", type=int, metavar="N", help="read a synthetic trace of N events")
    arguments = parser.parse_args()
    if arguments.ranks:
        _import_folder(arguments.ranks, num_events=arguments.synthetic or NUM_EVENTS)
        return
    with tempfile.TemporaryDirectory() as directory:
        if arguments.synthetic:
            trace = _synthetic(Path(directory), num_events=arguments.synthetic)
        else:
            trace = arguments.trace or _largest() or _synthetic(Path(directory), num_events=NUM_EVENTS)
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(_cost(sys.executable, OURS, trace))
            if arguments.hta:
                theirs.append(_cost(arguments.hta, THEIRS, trace))
        together = _together(arguments.hta, trace) if arguments.hta else None
    _show(trace.name, ours, theirs, together)


def _largest() -> Path | None:
    return max(TRACES.rglob("*.json.gz"), key=lambda path: path.stat().st_size, default=None)


def _synthetic(directory: Path, *, num_events: int) -> Path:
    """Events of a GPU and its host, written in blocks: a child process counts this one's memory before its start."""
    path, head, tail = directory / "synthetic.json", *kineto([]).split(END)
    with path.open("w") as file:
        file.write(head)
        for begin in range(0, num_events, BLOCK):
            events = [
                complete(
                    f"kernel_{at % 50}", f"{10 * at}.125", "7.250", cat="kernel" if at % 4 else "cpu_op", correlation=at
                )
                for at in range(begin, min(begin + BLOCK, num_events))
            ]
            file.write("," * (begin > 0) + kineto(events).removeprefix(head).removesuffix(END + tail))
        file.write(END + tail)
    return path


def _cost(python: str, code: str, trace: Path) -> Cost:
    child = subprocess.run([python, "-c", code, str(trace)], check=True, capture_output=True, text=True)
    return Cost(**json.loads(child.stdout.splitlines()[-1]))


def _together(hta: str, trace: Path) -> float:
    """Speed of importing eight copies by two processes, relative to HolisticTraceAnalysis in one process."""
    copies = [str(trace)] * COPIES
    seconds: dict[str, list[float]] = {sys.executable: [], hta: []}
    for _ in range(3):
        for python, code in ((sys.executable, OURS_TOGETHER), (hta, THEIRS_TOGETHER)):
            child = subprocess.run([python, "-c", code, *copies], check=True, capture_output=True, text=True)
            seconds[python].append(float(child.stdout.splitlines()[-1]))
    return statistics.median(seconds[hta]) / statistics.median(seconds[sys.executable])


def _import_folder(num_ranks: int, *, num_events: int) -> None:
    """Import a folder of synthetic traces by the command line, and print its wall time."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory) / "traces"
        folder.mkdir()
        text = _synthetic(folder, num_events=num_events)
        for rank in range(num_ranks):
            shutil.copy(text, folder / f"rank-{rank}.json")
        text.unlink()
        size = sum(path.stat().st_size for path in folder.iterdir())
        command = [sys.executable, "-m", "traincope.cli.main", "import", str(folder), "-o", f"{directory}/run"]
        start, before = time.perf_counter(), os.times()
        subprocess.run(command, check=True, capture_output=True)
        wall_s, after = time.perf_counter() - start, os.times()
        peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
        print(
            f"{num_ranks} traces of {num_events:,} events, {size / 1e6:.0f} MB, imported in {wall_s:.1f} s of wall "
            f"and {cpu_s:.1f} s of CPU time; the largest process took {peak_mib:.0f} MiB"
        )


def _show(name: str, ours: list[Cost], theirs: list[Cost], together: float | None) -> None:
    """Print median times, traincope's highest peak memory and the other's lowest."""
    cpu_s, peak_kib = statistics.median(cost.cpu_s for cost in ours), max(cost.peak_kib for cost in ours)
    events, stored = ours[0].events, ours[0].stored_bytes
    per_second, per_event = events / cpu_s, 1024 * peak_kib / events
    decoder = "msgspec" if find_decoder().path is None else "the native decoder"
    table = Table(title=f"{name}: {events:,} events, decoded by {decoder} ({os.cpu_count()} cores)", box=None)
    for heading in ("what", "measured", "budget", ""):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    table.add_row(
        "read and partitioned, events per second of CPU",
        f"{per_second:,.0f}",
        f"{EVENTS_BUDGET:,}",
        _judged(per_second >= EVENTS_BUDGET),
    )
    table.add_row("memory, bytes per event", f"{per_event:,.0f}", f"{BYTES_BUDGET}", _judged(per_event <= BYTES_BUDGET))
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
        assert together is not None
        table.add_row(
            f"the same, {COPIES} files by 2 processes",
            f"{together:.1f}",
            f"{TOGETHER_BUDGET:g}",
            _judged(together >= TOGETHER_BUDGET),
        )
        table.add_row("share of its memory", f"{memory:.2f}", f"{MEMORY_BUDGET:g}", _judged(memory <= MEMORY_BUDGET))
    Console().print(table)
    if not theirs:
        Console().print("no comparison: --hta PYTHON names an interpreter that has HolisticTraceAnalysis")


def _judged(within: bool) -> str:
    return "within" if within else "MISSED"


if __name__ == "__main__":
    main()
