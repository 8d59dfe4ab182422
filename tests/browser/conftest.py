"""Chromium and a viewer of normal and unusual runs, each started once for the tests in this folder."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser import awkward
from tests.browser.browser import ARGUMENTS, PATIENCE_MS, Visit, close, open_page
from tests.debian import need
from tests.viewer.library.reading import shelf
from traincope.viewer.library.library import Library
from traincope.viewer.serving import bound

SAMPLES = Path(__file__).parents[2] / "sample_runs"
RUNS = ("demo", "demo-3d", "format-1", "hostile", "no-steps", "missing", "imported", "crashed")
"""Runs of the viewer, in order."""


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Chromium, stopped after the last test of the folder, because its event loop would block other loops."""
    path = need("chromium", package="chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Visit]]:
    """`visit(url, width=1280, height=800, dark=False)` opens a page, which is closed after the test."""

    opened: list[Visit] = []

    def go(url: str, **options: int | bool) -> Visit:
        opened.append(open_page(chromium, url, **options))
        return opened[-1]

    yield go
    for loaded in opened:
        close(loaded)


@pytest.fixture(scope="package")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The library of RUNS. `no-steps` grows in one test."""
    folder = tmp_path_factory.mktemp("runs")
    runs = (
        *(SAMPLES / name for name in RUNS[:3]),
        awkward.hostile(folder / "hostile"),
        awkward.no_steps(folder / "no-steps"),
        awkward.with_missing_ranks(SAMPLES / "demo", folder / "missing"),
        awkward.imported(folder / "imported"),
        awkward.crashed(SAMPLES / "demo-3d", folder / "crashed"),
    )
    return shelf(*runs, cache=folder / "cache", price_per_gpu_hour=2.5)


@pytest.fixture(scope="package")
def address(library: Library) -> Iterator[str]:
    """Address of the viewer."""
    server = bound(library, port=0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()
