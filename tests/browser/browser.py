"""A page in Debian's Chromium, with its complaints and its network requests."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Browser, ConsoleMessage, Error, Locator, Page, Request, TimeoutError

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
BLANK = "about:blank"
PATIENCE_MS = 120_000
"""Timeout on a busy machine; no test measures it."""
ATTEMPTS = 10
REACTION_MS = 20_000
"""Time in which the page reacts to a gesture, on a busy machine too."""
MENU_MS = 5_000
"""Time in which an open menu lets an option be clicked."""


@dataclass(kw_only=True)  # not frozen: Playwright keeps its wrappers of the methods here
class Visit:
    """One page and its messages since it was opened."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of its console, uncaught exceptions, failed requests."""
    requests: list[str] = field(default_factory=list)
    """Every requested URL, its own first."""
    sent: list[Request] = field(default_factory=list)
    """The same as Playwright's objects: the end of a request of the visit before may be heard in this one."""

    def went_to(self, *, besides: str) -> list[str]:
        """Requests that do not begin with `besides`, without the page's own data and blob URLs."""
        return [url for url in self.requests if not url.startswith((besides, "data:", "blob:"))]

    def heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def raised(self, error: Error) -> None:
        self.complaints.append(f"uncaught: {error}")

    def requested(self, request: Request) -> None:
        self.requests.append(request.url)
        self.sent.append(request)

    def failed(self, request: Request) -> None:
        if request in self.sent:
            self.complaints.append(f"failed: {request.url}: {request.failure}")


def open_page(browser: Browser, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> Visit:
    """Open `url` in a free tab, and wait for its `load` event.

    All tabs share a cache, and a tab keeps what it has compiled: a visit need not compile the libraries again.
    """
    context = browser.contexts[0] if browser.contexts else browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = next((page for page in context.pages if page.url == BLANK), None) or context.new_page()
    visit = Visit(page=page)
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(media="null", color_scheme="dark" if dark else "light", reduced_motion="reduce")
    page.on("console", visit.heard)
    page.on("pageerror", visit.raised)
    page.on("request", visit.requested)
    page.on("requestfailed", visit.failed)
    page.goto(url)
    return visit


def close(visit: Visit) -> None:
    """Free the tab, and forget what the page stored in the browser."""
    page = visit.page
    page.remove_listener("console", visit.heard)
    page.remove_listener("pageerror", visit.raised)
    page.remove_listener("request", visit.requested)
    page.remove_listener("requestfailed", visit.failed)
    page.unroute_all()
    page.evaluate("localStorage.clear(), sessionStorage.clear()")
    page.mouse.move(0, 0)
    page.goto(BLANK)


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
