"""What looking at a large run costs: `python -m tests.bench.viewer`.

Writes a run of 1,024 ranks and 10 million spans, lets `traincope view` read it once, and looks at it in
Debian's Chromium: how long the first page takes, how long a zoom takes from the mouse button's release to the
new picture, and how much memory the server takes. Budgets are judged, never asserted.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright
from rich.console import Console
from rich.table import Table

from tests.bench.synthetic import Size, write_large_run
from tests.browser.browser import ARGUMENTS

SAMPLE = Path(__file__).parents[2] / "sample_runs" / "demo"
SIZE = Size(shards=512, repeats=4)
FIRST_PAGE_BUDGET_S, ZOOM_BUDGET_S, MEMORY_BUDGET_GIB = 3.0, 0.3, 2.0
ROUNDS, ZOOMS = 3, 24
PATIENCE_MS = 3_600_000
SCREEN: ViewportSize = {"width": 1280, "height": 900}

DRAWN = "() => { const g = document.querySelector('#timeline .js-plotly-plot'); return g && g.data && g._fullLayout }"
WATCH = """() => {
  const drawn = document.querySelector('#timeline .js-plotly-plot');
  window.zoomed = new Promise((done) => {
    document.addEventListener('mouseup', () => {
      const released = performance.now(), before = drawn.data;
      drawn.on('plotly_afterplot', function seen() {
        if (drawn.data !== before) {
          drawn.removeListener('plotly_afterplot', seen);
          requestAnimationFrame(() => setTimeout(() => done(performance.now() - released)));
        }
      });
    }, { once: true, capture: true });
  });
}"""
"""From the release of the button until the picture of the answer is on the screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A `traincope view` that is running."""

    process: subprocess.Popen[str]
    address: str

    @property
    def peak_gib(self) -> float:
        """The most memory that it held, files that are mapped included."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(found.group(1)) / (1 << 20) if found else float("nan")

    @property
    def cpu_seconds(self) -> float:
        """Of itself, without the child that reads."""
        used = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(used[11]) + int(used[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Write a run and look at it; or at the one that is given, whose tiles may be in the user's cache already."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "run", type=Path, nargs="?", help="written before by tests.bench.synthetic (default: write one)"
    )
    given = parser.parse_args().run
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        run, cache = given or Path(directory) / "large", None if given else Path(directory) / "cache"
        records = 0 if given else write_large_run(SAMPLE, run, size=SIZE)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(ARGUMENTS))
        rows = [_read_once(browser, run, cache), *_looked_at(browser, run, cache)]
    _show(rows, records=records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row of the table."""

    what: str
    wall: list[float]
    cpu: list[float] = field(default_factory=list)
    """Of the server and the page's main thread: what it would take where nobody else computes."""
    budget: float | None = None


def _read_once(browser: Browser, run: Path, cache: Path | None) -> Measured:
    """Until the first page is there, the reading of the run included where it has not been read."""
    with _serving(run, cache) as server:
        begun = time.perf_counter()
        page = browser.new_page(viewport=SCREEN)
        _open(page, server)
        page.close()
        return Measured(what="first page of a run that was never read, s", wall=[time.perf_counter() - begun])


def _looked_at(browser: Browser, run: Path, cache: Path | None) -> Iterator[Measured]:
    with _serving(run, cache) as server:
        firsts, first_cpus = [], []
        for _ in range(ROUNDS):
            page = browser.new_context(viewport=SCREEN).new_page()
            used = _Used(page, server)
            begun = time.perf_counter()
            _open(page, server)
            firsts.append(time.perf_counter() - begun)
            first_cpus.append(used.seconds())
        yield Measured(what="first page, s", wall=firsts, cpu=first_cpus, budget=FIRST_PAGE_BUDGET_S)
        zooms, zoom_cpus = zip(*_zooms(page, server), strict=True)
        yield Measured(what="zoom, s", wall=list(zooms), cpu=list(zoom_cpus), budget=ZOOM_BUDGET_S)
        yield Measured(what="server's peak memory, GiB", wall=[server.peak_gib], budget=MEMORY_BUDGET_GIB)


class _Used:
    """CPU seconds of the server and of the page's main thread since it was made."""

    def __init__(self, page: Page, server: Server) -> None:
        self._devtools, self._server = page.context.new_cdp_session(page), server
        self._devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._before = self._now()

    def seconds(self) -> float:
        return self._now() - self._before

    def _now(self) -> float:
        metrics = self._devtools.send("Performance.getMetrics")["metrics"]
        (page_s,) = (one["value"] for one in metrics if one["name"] == "TaskDuration")
        return float(page_s) + self._server.cpu_seconds


@contextmanager
def _serving(run: Path, cache: Path | None) -> Iterator[Server]:
    command = [sys.executable, "-m", "traincope.cli.main", "view", str(run), "--no-browser"]
    environment = os.environ if cache is None else {**os.environ, "XDG_CACHE_HOME": str(cache)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        yield Server(process=process, address=process.stdout.readline().split()[0])
    finally:
        process.terminate()
        process.wait()


def _open(page: Page, server: Server) -> None:
    page.goto(f"{server.address}timeline")
    page.wait_for_function(DRAWN, timeout=PATIENCE_MS)


def _zooms(page: Page, server: Server) -> Iterator[tuple[float, float]]:
    """Seconds of each, wall and CPU: a third of what is shown, dragged out; after six of them the whole run again."""
    for turn in range(ZOOMS):
        box = page.locator("#timeline .nsewdrag").first.bounding_box()
        assert box is not None
        left, right = box["x"] + box["width"] * 0.35, box["x"] + box["width"] * (0.65 + 0.01 * (turn % 6))
        middle = box["y"] + box["height"] / 2
        page.mouse.move(left, middle)
        page.mouse.down()
        page.mouse.move((left + right) / 2, middle)
        page.mouse.move(right, middle)
        page.evaluate(WATCH)
        used = _Used(page, server)
        page.mouse.up()
        wall_s = page.evaluate("() => window.zoomed") / 1000
        yield wall_s, used.seconds()
        if turn % 6 == 5:
            before = page.inner_text("#caption")
            page.keyboard.press("0")
            page.wait_for_function(
                "before => document.querySelector('#caption').innerText !== before", arg=before, timeout=PATIENCE_MS
            )


def _show(rows: list[Measured], *, records: int) -> None:
    """The middle of each; CPU beside it, for a machine that others use makes every wait longer."""
    size = f", {records:,} events" if records else ""
    title = f"traincope view, 1,024 ranks{size} ({os.cpu_count()} cores, load {os.getloadavg()[0]:.1f})"
    table = Table(title=title, box=None)
    for heading in ("what", "measured", "spread", "CPU", "budget", ""):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for row in rows:
        middle = statistics.median(row.wall)
        spread = f"{min(row.wall):.2f}-{max(row.wall):.2f}" if len(row.wall) > 1 else ""
        cpu = f"{statistics.median(row.cpu):.2f}" if row.cpu else ""
        judged = "" if row.budget is None else "within" if middle <= row.budget else "MISSED"
        table.add_row(row.what, f"{middle:.2f}", spread, cpu, "" if row.budget is None else f"{row.budget:g}", judged)
    Console().print(table)


if __name__ == "__main__":
    main()
