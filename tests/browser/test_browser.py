"""What the pages' tests rest on: Chromium starts, and a page's complaints and requests are seen."""

from collections.abc import Callable
from pathlib import Path

from tests.browser.browser import Visit

Go = Callable[..., Visit]


def written(folder: Path, body: str) -> str:
    page = folder / "page.html"
    page.write_text(f"<!doctype html><title>t</title>{body}", encoding="utf-8")
    return page.as_uri()


def test_a_quiet_page_complains_of_nothing_and_asks_for_itself_alone(visit: Go, tmp_path: Path) -> None:
    url = written(tmp_path, "<p>hello<script>console.log('fine')</script>")
    seen = visit(url)
    assert seen.page.inner_text("p") == "hello"
    assert seen.complaints == []
    assert seen.requests == [url]


def test_errors_warnings_and_exceptions_are_complaints(visit: Go, tmp_path: Path) -> None:
    script = "<script>console.error('one'); console.warn('two'); throw new Error('three')</script>"
    complaints = visit(written(tmp_path, script)).complaints
    assert complaints[:2] == ["error: one", "warning: two"]
    assert complaints[2].startswith("uncaught: ")
    assert "three" in complaints[2]


def test_a_request_elsewhere_is_seen(visit: Go, tmp_path: Path) -> None:
    url = written(tmp_path, "<img src='http://127.0.0.1:9/x.png'>")
    assert visit(url).went_to(besides=url) == ["http://127.0.0.1:9/x.png"]
