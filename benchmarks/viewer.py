"""Time to view a large run: `python -m benchmarks.viewer`.

Writes a run of 1,024 ranks and 10 million spans, lets `traincope view` read it once, and opens it in Debian's Chromium:
time of the first reading, from the start of the command until the verdict is on the screen and all pages are ready;
time of the first visit to pages; time of a zoom from releasing the mouse button to the new picture; and memory of the
server. Each wait is shown with the CPU time of the server, its child processes included, and of the page's main thread:
the most that it would take on an idle machine. Two processes share the first reading, so half of its CPU time is the
least. Budgets are reported, never asserted.
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
from dataclasses import dataclass, replace
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright
from rich.console import Console
from rich.table import Table

from benchmarks.synthetic import Size, write_large_run
from tests.browser.browser import ARGUMENTS

SAMPLE = Path(__file__).parents[1] / "sample_runs" / "demo"
SIZE = Size(shards=512, repeats=4)
READING_BUDGET_S, FIRST_PAGE_BUDGET_S, ZOOM_BUDGET_S, MEMORY_BUDGET_GIB = 20.0, 3.0, 0.3, 2.0
FIRSTS = ("verdict", "ledger", "timeline", "ranks")
"""Pages of a first visit, by a browser without the viewer's scripts in its cache."""
ROUNDS, ZOOMS = 5, 24
PATIENCE_MS = 3_600_000
SCREEN: ViewportSize = {"width": 1280, "height": 900}

DRAWN = """slug => {
  const page = document.querySelector(`main[data-page=${slug}]`);
  const figures = page ? Array.from(page.querySelectorAll('.dash-graph')) : [];
  return page && page.querySelector('h2, #caption') && (figures.length || slug === 'verdict')
    && !page.querySelector('[role=status], .dash-graph--pending')
    && figures.every((one) => (one.querySelector('.js-plotly-plot') || {})._fullLayout);
}"""
"""True when the page is complete."""
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
"""Time from releasing the button until the new picture is on the screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running `traincope view`."""

    process: subprocess.Popen[str]
    address: str

    @property
    def peak_gib(self) -> float:
        """Peak memory, including mapped files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        match = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(match.group(1)) / (1 << 20) if match else float("nan")

    @property
    def cpu_seconds(self) -> float:
        """CPU time of the process and of its ended children."""
        used = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, used[11:15])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Write and view a run, or view the given one, whose tiles may be in the user's cache already."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "run", type=Path, nargs="?", help="written earlier by benchmarks.synthetic (default: write one)"
    )
    given = parser.parse_args().run
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        run, cache = given or Path(directory) / "large", None if given else Path(directory) / "cache"
        records = 0 if given else write_large_run(SAMPLE, run, size=SIZE)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(ARGUMENTS))
        rows = [_read_once(browser, run, cache), *_costs(browser, run, cache)]
    _show(rows, records=records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of one wait."""

    wall: float
    server: float
    """CPU of the server."""
    page: float
    """CPU of the page's main thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A row of the table."""

    name: str
    wall: list[float]
    server: list[float]
    page: list[float]
    budget: float | None = None


def _measured(name: str, costs: list[Cost], *, budget: float | None = None) -> Measured:
    return Measured(
        name=name,
        wall=[entry.wall for entry in costs],
        server=[entry.server for entry in costs],
        page=[entry.page for entry in costs],
        budget=budget,
    )


def _read_once(browser: Browser, run: Path, cache: Path | None) -> Measured:
    """Time from the command until the verdict is there, with the reading of the run if necessary."""
    begun = time.perf_counter()
    with _serving(run, cache) as server:
        visited = _visit(browser, server, "verdict")
        cost = replace(visited, wall=time.perf_counter() - begun, server=server.cpu_seconds)
    return _measured("verdict, never read", [cost], budget=READING_BUDGET_S)


def _costs(browser: Browser, run: Path, cache: Path | None) -> Iterator[Measured]:
    with _serving(run, cache) as server:
        for slug in FIRSTS:
            costs = [_visit(browser, server, slug) for _ in range(ROUNDS)]
            yield _measured(f"{slug}, first", costs, budget=FIRST_PAGE_BUDGET_S)
        for ranks in ("0-1023", "0-7"):
            page = browser.new_context(viewport=SCREEN).new_page()
            _open(page, server, "timeline", search=f"?ranks={ranks}")
            yield _measured(f"zoom, ranks {ranks}", list(_zooms(page, server)), budget=ZOOM_BUDGET_S)
            page.context.close()
        yield Measured(name="server's peak, GiB", wall=[server.peak_gib], server=[], page=[], budget=MEMORY_BUDGET_GIB)


def _visit(browser: Browser, server: Server, slug: str) -> Cost:
    """A page opened by a new browser."""
    context = browser.new_context(viewport=SCREEN)
    page = context.new_page()
    used, begun = _Used(page, server), time.perf_counter()
    _open(page, server, slug)
    cost = used.since(begun)
    context.close()
    return cost


class _Used:
    """CPU seconds of the server and of the page's main thread since this object was made."""

    def __init__(self, page: Page, server: Server) -> None:
        self._devtools, self._server = page.context.new_cdp_session(page), server
        self._devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._before = self._page_seconds(), server.cpu_seconds

    def since(self, begun: float, *, wall_s: float | None = None) -> Cost:
        """`begun`: of `time.perf_counter`; `wall_s` if the page has a better clock."""
        wall_s = time.perf_counter() - begun if wall_s is None else wall_s
        page, server = self._before
        return Cost(wall=wall_s, page=self._page_seconds() - page, server=self._server.cpu_seconds - server)

    def _page_seconds(self) -> float:
        metrics = self._devtools.send("Performance.getMetrics")["metrics"]
        return float(next(entry["value"] for entry in metrics if entry["name"] == "TaskDuration"))


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


def _open(page: Page, server: Server, slug: str, *, search: str = "") -> None:
    page.goto(f"{server.address}{slug}{search}")
    page.wait_for_function(DRAWN, arg=slug, timeout=PATIENCE_MS)


def _zooms(page: Page, server: Server) -> Iterator[Cost]:
    """Zoom by dragging into a third of the window; after six zooms back to the whole run."""
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
        used, begun = _Used(page, server), time.perf_counter()
        page.mouse.up()
        yield used.since(begun, wall_s=page.evaluate("() => window.zoomed") / 1000)
        if turn % 6 == 5:
            before = page.inner_text("#caption")
            page.keyboard.press("0")
            page.wait_for_function(
                "before => document.querySelector('#caption').innerText !== before", arg=before, timeout=PATIENCE_MS
            )


def _show(rows: list[Measured], *, records: int) -> None:
    """Print the medians; with CPU time, because other load makes every wait longer."""
    size = f", {records:,} events" if records else ""
    on = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    title = f"traincope view, 1,024 ranks{size} ({on}): seconds"
    table = Table(title=title, box=None)
    for heading in ("what", "measured", "spread", "CPU server", "CPU page", "budget", ""):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for row in rows:
        middle = statistics.median(row.wall)
        spread = f"{min(row.wall):.2f}-{max(row.wall):.2f}" if len(row.wall) > 1 else ""
        cpus = (f"{statistics.median(entry):.2f}" if entry else "" for entry in (row.server, row.page))
        judged = "" if row.budget is None else "within" if middle <= row.budget else "MISSED"
        table.add_row(row.name, f"{middle:.2f}", spread, *cpus, "" if row.budget is None else f"{row.budget:g}", judged)
    Console().print(table)


if __name__ == "__main__":
    main()
