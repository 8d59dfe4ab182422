"""Chromium, started once for the tests in this folder."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.browser import ARGUMENTS, PATIENCE_MS, Visit, open_page
from tests.debian import need


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """Stopped when the last test of the folder is over: its event loop would stand in the way of others' loops."""
    path = need("chromium", package="chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Visit]]:
    """`visit(url, width=1280, height=800, dark=False)`: the open page; closed when the test is over."""

    opened: list[Visit] = []

    def go(url: str, **options: int | bool) -> Visit:
        opened.append(open_page(chromium, url, **options))
        return opened[-1]

    yield go
    for seen in opened:
        seen.page.context.close()
