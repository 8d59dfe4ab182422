"""Pictures of the HTML report for the README: `python -m tests.browser.pictures`, from the sample runs.

Light and dark, what one sees first at 1280 pixels, and one figure of each of the sections that say most.
"""

import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import traincope
from tests.browser.browser import ARGUMENTS, open_page
from traincope.report.html import to_html

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "pictures"
SAMPLE = ROOT / "sample_runs" / "demo-3d"
CHROMIUM = "/usr/bin/chromium"
HEIGHT = 900


def main() -> None:
    """Writes `report-light.png`, `report-dark.png` and `report-pipeline.png`."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "report.html"
        page.write_text(to_html(traincope.analyze(traincope.open_run(SAMPLE))), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        for theme in ("light", "dark"):
            seen = open_page(browser, page.as_uri(), height=HEIGHT, dark=theme == "dark").page
            seen.wait_for_selector("html[data-drawn=yes]", state="attached")
            seen.screenshot(path=OUT / f"report-{theme}.png")
            if theme == "light":
                seen.locator("#pipeline").screenshot(path=OUT / "report-pipeline.png")
        browser.close()


if __name__ == "__main__":
    main()
