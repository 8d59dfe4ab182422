"""Pictures for README.md and docs: `python -m tests.browser.pictures` writes them to `docs/pictures`.

Report and viewer show a sample run: the first screen of the report and its pipeline; the verdict and
one step on the timeline. The page of a running job shows a training of its own.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, expect, sync_playwright

import traincope
from tests.browser.browser import ARGUMENTS, PATIENCE_MS, open_page
from tests.live.processes import until
from tests.viewer.library.reading import shelf
from traincope.report.html import to_html
from traincope.viewer.serving import bound

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "pictures"
SAMPLE = ROOT / "sample_runs" / "demo-3d"
CHROMIUM = "/usr/bin/chromium"
HEIGHT = 900
VIEWER = {
    "verdict": ("/verdict?run=0", "main[data-page=verdict] > *"),
    "timeline": ("/timeline?run=0&step=3&ranks=0-3", "#timeline .js-plotly-plot .xtick text"),
}
"""Name of a picture -> address, and an element that exists once everything is drawn."""
CLI = (sys.executable, "-m", "traincope.cli.main")
SMALLER = ("model.layers=2", "parallel.microbatches=4", "train.batch=16", "train.steps=100000")
TRAINING = (*CLI, "train", str(ROOT / "examples" / "demo.toml"), *(f"--set={value}" for value in SMALLER), "--out")
LIVE = (*CLI, "live", "--no-browser", "--port", "0")
LIVE_STEP = re.compile(r"^([3-9]\d|\d{3,})$")
"""The picture of a running job is taken from step 30 on: its curves then have a shape."""
JUDGED = re.compile(r"^judged .* ago$")
"""Words next to the verdict so far."""


def main() -> None:
    """Write `report-{light,pipeline}.png`, `view-{verdict,timeline}.png` and `live.png`."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        _report(browser, Path(folder))
        with _served(Path(folder)) as address:
            _viewer(browser, address)
        with _watched(Path(folder) / "my-job") as address:
            _live(browser, address)
        browser.close()


def _report(browser: Browser, folder: Path) -> None:
    page = folder / "report.html"
    page.write_text(to_html(traincope.analyze(traincope.open_run(SAMPLE))), encoding="utf-8")
    loaded = open_page(browser, page.as_uri(), height=HEIGHT).page
    loaded.wait_for_selector("html[data-drawn=yes]", state="attached")
    loaded.screenshot(path=OUT / "report-light.png")
    loaded.locator("#pipeline").screenshot(path=OUT / "report-pipeline.png")


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Serve the sample run and yield the viewer's address."""
    server = bound(shelf(SAMPLE, cache=folder / "cache"), port=0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _viewer(browser: Browser, address: str) -> None:
    for name, (where, drawn) in VIEWER.items():
        loaded = open_page(browser, f"{address}{where}", height=HEIGHT).page
        loaded.wait_for_selector(drawn)
        loaded.wait_for_load_state("networkidle")
        loaded.screenshot(path=OUT / f"view-{name}.png")


@contextmanager
def _watched(run: Path) -> Iterator[str]:
    """Train with 4 ranks and yield the address of `traincope live`."""
    command = [*TRAINING, str(run)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True) as training:
        try:
            until(lambda: len(list(run.glob("attempt-000/rank-*/rank.json"))) == 4, "4 ranks")
            with subprocess.Popen([*LIVE, str(run)], stdout=subprocess.PIPE, text=True) as live:
                try:
                    assert live.stdout is not None
                    yield live.stdout.readline().split()[0]
                finally:
                    live.terminate()
        finally:
            os.killpg(training.pid, signal.SIGTERM)  # torchrun too: it ends its workers


def _live(browser: Browser, address: str) -> None:
    page = open_page(browser, address, height=HEIGHT).page
    expect(page.locator("main .js-plotly-plot")).to_have_count(3, timeout=PATIENCE_MS)
    steps = page.locator("tr:has(td:text-is('alive')) td:nth-child(3)")
    expect(steps.first).to_have_text(LIVE_STEP, timeout=PATIENCE_MS)
    expect(page.get_by_text(JUDGED)).to_be_visible(timeout=PATIENCE_MS)
    page.screenshot(path=OUT / "live.png")


if __name__ == "__main__":
    main()
