"""Checks of the browser fixtures: Chromium starts, and complaints and requests of a page are recorded."""

from collections.abc import Callable
from pathlib import Path

from tests.browser.browser import Visit

Go = Callable[..., Visit]


def written(folder: Path, body: str) -> str:
    page = folder / "page.html"
    page.write_text(f"<!doctype html><title>t</title>{body}", encoding="utf-8")
    return page.as_uri()


def test_a_quiet_page_has_no_complaints_and_one_request(visit: Go, tmp_path: Path) -> None:
    url = written(tmp_path, "<p>hello<script>console.log('fine')</script>")
    loaded = visit(url)
    assert loaded.page.inner_text("p") == "hello"
    assert loaded.complaints == []
    assert loaded.requests == [url]


def test_errors_warnings_and_exceptions_are_complaints(visit: Go, tmp_path: Path) -> None:
    script = "<script>console.error('one'); console.warn('two'); throw new Error('three')</script>"
    complaints = visit(written(tmp_path, script)).complaints
    assert complaints[:2] == ["error: one", "warning: two"]
    assert complaints[2].startswith("uncaught: ")
    assert "three" in complaints[2]


def test_a_request_elsewhere_is_seen(visit: Go, tmp_path: Path) -> None:
    url = written(tmp_path, "<img src='http://127.0.0.1:9/x.png'>")
    assert visit(url).went_to(besides=url) == ["http://127.0.0.1:9/x.png"]
