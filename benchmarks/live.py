"""Cost of the node's agent: `python -m benchmarks.live [SECONDS]`; for the cost of a scrape see `scrape.py`.

Eight ranks write the records of the sample run in real time, repeatedly, and an agent in its own process reads them as
in a training. Its share of a core is the kernel's count of its CPU time, without the interpreter's start and the first
pass. A scraper reads its metrics like a Prometheus. Budgets are reported, never asserted, because the machine may be
noisy.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from rich.console import Console
from rich.table import Table

from benchmarks import scrape
from benchmarks.growing import GrowingRun
from benchmarks.synthetic import Size, write_large_run
from traincope.store.layout import rank_directory
from traincope.store.side_tables.rows import Row, read_rows

SAMPLE = Path(__file__).parents[1] / "sample_runs" / "demo"
RANKS = 8
SIZE = Size(shards=4, repeats=300)
DEFAULT_SECONDS = 60.0
FIRST_LOOK_SECONDS = 12.0
AS_PROMETHEUS = {"Accept": "application/openmetrics-text;version=1.0.0", "Accept-Encoding": "gzip"}
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings of an agent."""

    name: str
    words: tuple[str, ...]
    budget: float | None
    """Share of a core; None: no budget."""
    scrape_seconds: float | None = None
    """Interval of scrapes; None: no scrapes."""


SETTINGS = (
    Setting(name="default settings (every 5 s)", words=(), budget=0.01),
    Setting(name="default settings, scraped every 15 s", words=(), budget=0.01, scrape_seconds=15),
    Setting(name="default settings, scraped every second", words=(), budget=0.025, scrape_seconds=1),
    Setting(name="looking every 15 s", words=("--interval", "15"), budget=0.01),
    Setting(name="every 1 s, without its own CPU limit", words=("--interval", "1", "--share", "1"), budget=None),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of one agent."""

    share: float
    """Share of a core."""
    records_per_second: float
    """Written by the ranks."""
    rows: int
    lag_seconds: float
    """Time since the end of the step in the newest row."""


def main() -> None:
    """Write, measure and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_SECONDS
    with tempfile.TemporaryDirectory() as directory:
        large = Path(directory) / "large"
        write_large_run(SAMPLE, large, size=SIZE)
        costs = [_cost(large, Path(directory) / str(at), setting, seconds) for at, setting in enumerate(SETTINGS)]
    _show(costs, seconds=seconds)
    scrape.main()


def _cost(large: Path, run: Path, setting: Setting, seconds: float) -> Cost:
    growing = GrowingRun(large, run)
    command = [sys.executable, "-m", "traincope.cli.commands.agent", str(run), "--ranks", str(RANKS), *setting.words]
    environment = {**os.environ, "TRAINCOPE_METRICS": "127.0.0.1:0", "TRAINCOPE_TARGETS": str(run.parent)}
    agent = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    stopped = threading.Event()
    try:
        growing.grow(FIRST_LOOK_SECONDS)
        threading.Thread(target=_scrape, args=(run, setting.scrape_seconds, stopped)).start()
        spent, written, began = _cpu_seconds(agent.pid), growing.num_written, time.monotonic()
        growing.grow(seconds)
        took = time.monotonic() - began
        rows = [row for rank in range(RANKS) for row in read_rows(rank_directory(run, attempt=0, rank=rank), rank=rank)]
        return Cost(
            share=(_cpu_seconds(agent.pid) - spent) / took,
            records_per_second=(growing.num_written - written) / took,
            rows=len(rows),
            lag_seconds=time.time() - max(map(_end_ns, rows), default=0) / 1e9,
        )
    finally:
        stopped.set()
        agent.kill()
        agent.wait()


def _scrape(run: Path, seconds: float | None, stopped: threading.Event) -> None:
    """Scrape like a Prometheus, in another process than the measured agent."""
    while seconds is not None and not stopped.wait(seconds):
        for note in run.glob("metrics-*.json"):
            url = json.loads(note.read_text())["prometheus"]
            with urlopen(Request(url, headers=AS_PROMETHEUS), timeout=30) as answer:
                answer.read()


def _end_ns(row: Row) -> int:
    return row.start_ns + row.wall_ns


def _cpu_seconds(pid: int) -> float:
    """CPU time of the process with all its threads (proc(5), utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _show(costs: list[Cost], *, seconds: float) -> None:
    table = Table(title=f"the agent of {RANKS} ranks, {seconds:g} s each ({os.cpu_count()} cores)", box=None)
    for heading in ("an agent", "of a core", "budget", "", "records/s", "rows", "age of the newest row"):
        table.add_column(heading, justify="left" if heading == "an agent" else "right")
    for setting, cost in zip(SETTINGS, costs, strict=True):
        judged = "" if setting.budget is None else "within" if cost.share <= setting.budget else "MISSED"
        budget = "" if setting.budget is None else f"{setting.budget:.1%}"
        table.add_row(
            *(setting.name, f"{cost.share:.2%}", budget, judged),
            *(f"{cost.records_per_second:,.0f}", f"{cost.rows:,}", f"{cost.lag_seconds:.1f} s"),
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
