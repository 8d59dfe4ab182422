"""A page in Debian's Chromium, with its complaints and its network requests."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, TimeoutError

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-gpu-rasterization",
    "--disable-software-rasterizer",
    "--disable-extensions",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 120_000
"""Timeout on a busy machine; no test measures it."""
ATTEMPTS = 10
REACTION_MS = 20_000
"""Time in which the page reacts to a gesture, on a busy machine too."""
MENU_MS = 5_000
"""Time in which an open menu lets an option be clicked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """One page and its messages since it was opened."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of its console, uncaught exceptions, failed requests."""
    requests: list[str] = field(default_factory=list)
    """Every requested URL, its own first."""

    def went_to(self, *, besides: str) -> list[str]:
        """Requests that do not begin with `besides`, without the page's own data and blob URLs."""
        return [url for url in self.requests if not url.startswith((besides, "data:", "blob:"))]


def open_page(browser: Browser, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> Visit:
    """Open `url` and wait for its `load` event. All pages share a cache, or each would compile the libraries again."""
    context = browser.contexts[0] if browser.contexts else browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    visit = Visit(page=context.new_page())
    visit.page.set_viewport_size({"width": width, "height": height})
    visit.page.emulate_media(color_scheme="dark" if dark else "light", reduced_motion="reduce")
    visit.page.on("console", lambda message: _heard(visit, message))
    visit.page.on("pageerror", lambda error: visit.complaints.append(f"uncaught: {error}"))
    visit.page.on("request", lambda request: visit.requests.append(request.url))
    visit.page.on("requestfailed", lambda request: visit.complaints.append(_failed(request)))
    visit.page.goto(url)
    return visit


def close(visit: Visit) -> None:
    """Close the page, and forget what it stored in the browser."""
    visit.page.evaluate("localStorage.clear()")
    visit.page.close()


def _heard(visit: Visit, message: ConsoleMessage) -> None:
    if message.type in ("error", "warning"):
        visit.complaints.append(f"{message.type}: {message.text}")


def _failed(request: Request) -> str:
    return f"failed: {request.url}: {request.failure}"


def drag(plot: Locator, begin: float, end: float, *, until: str) -> None:
    """Drag across a plot, from and to these shares of its width, until the JavaScript condition is true."""
    page = plot.page

    def gesture() -> None:
        box = plot.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] * begin, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * (begin + end) / 2, box["y"] + 50)
        page.mouse.move(box["x"] + box["width"] * end, box["y"] + 50)
        page.mouse.up()
        page.wait_for_function(until, timeout=REACTION_MS)

    _repeat(gesture)


def choose(page: Page, name: str, option: str | re.Pattern[str]) -> None:
    """Choose a value in the dropdown of an address parameter."""

    def gesture() -> None:
        page.click(f'button[id*=\'"name":"{name}"\']')
        page.get_by_role("option").filter(has_text=option).first.click(timeout=MENU_MS)

    _repeat(gesture, after_failure=lambda: page.keyboard.press("Escape"))


def _repeat(gesture: Callable[[], None], *, after_failure: Callable[[], None] = lambda: None) -> None:
    """Repeat a gesture until it succeeds: a page that is drawn again in the middle of a gesture ends it."""
    for _ in range(ATTEMPTS - 1):
        try:
            return gesture()
        except TimeoutError:
            after_failure()
    return gesture()
