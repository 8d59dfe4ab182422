"""A page in Debian's Chromium, with all it complained of and all it asked the network for."""

from dataclasses import dataclass, field

from playwright.sync_api import Browser, ConsoleMessage, Page, Request

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 120_000
"""For what will come on a busy machine too; nothing is judged by it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """One page and what it did since it was opened."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of its console, uncaught exceptions, requests that failed."""
    requests: list[str] = field(default_factory=list)
    """Every URL it asked for, its own first."""

    def went_to(self, *, besides: str) -> list[str]:
        """What it asked for that does not begin with `besides`; a page's own data and blobs are no request."""
        return [url for url in self.requests if not url.startswith((besides, "data:", "blob:"))]


def open_page(browser: Browser, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> Visit:
    """`url` in a context of its own (no cookies, no cache), its `load` event past."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE_MS)
    visit = Visit(page=context.new_page())
    visit.page.on("console", lambda message: _heard(visit, message))
    visit.page.on("pageerror", lambda error: visit.complaints.append(f"uncaught: {error}"))
    visit.page.on("request", lambda request: visit.requests.append(request.url))
    visit.page.on("requestfailed", lambda request: visit.complaints.append(_failed(request)))
    visit.page.goto(url)
    return visit


def _heard(visit: Visit, message: ConsoleMessage) -> None:
    if message.type in ("error", "warning"):
        visit.complaints.append(f"{message.type}: {message.text}")


def _failed(request: Request) -> str:
    return f"failed: {request.url}: {request.failure}"
