"""Pictures of the HTML report and of the viewer for the README: `python -m tests.browser.pictures`, of a sample run.

The report light and dark, what one sees first at 1280 pixels, and its pipeline; of the viewer the verdict and a
step on the timeline.
"""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

import traincope
from tests.browser.browser import ARGUMENTS, open_page
from tests.viewer.reading import shelf
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
"""Name of a picture -> address, and what is there when all is drawn."""


def main() -> None:
    """Writes `report-light.png`, `report-dark.png`, `report-pipeline.png`, `view-verdict.png`, `view-timeline.png`."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        _report(browser, Path(folder))
        with _served(Path(folder)) as address:
            _viewer(browser, address)
        browser.close()


def _report(browser: Browser, folder: Path) -> None:
    page = folder / "report.html"
    page.write_text(to_html(traincope.analyze(traincope.open_run(SAMPLE))), encoding="utf-8")
    for theme in ("light", "dark"):
        seen = open_page(browser, page.as_uri(), height=HEIGHT, dark=theme == "dark").page
        seen.wait_for_selector("html[data-drawn=yes]", state="attached")
        seen.screenshot(path=OUT / f"report-{theme}.png")
        if theme == "light":
            seen.locator("#pipeline").screenshot(path=OUT / "report-pipeline.png")


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The viewer's address."""
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
        seen = open_page(browser, f"{address}{where}", height=HEIGHT).page
        seen.wait_for_selector(drawn)
        seen.wait_for_load_state("networkidle")
        seen.screenshot(path=OUT / f"view-{name}.png")


if __name__ == "__main__":
    main()
