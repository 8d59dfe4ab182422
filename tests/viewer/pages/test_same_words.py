"""Facts are worded once: text, HTML and the viewer show the same sentences of a section."""

import io
import re
from html import unescape
from pathlib import Path

import pytest
from rich.console import Console

from tests.viewer.library.reading import shelf
from tests.viewer.pages.test_same_numbers import SAMPLES
from traincope.analysis import analyze
from traincope.report.document.document import to_document
from traincope.report.html import to_html
from traincope.report.sections.ledger import ledger
from traincope.report.sections.recording import recording
from traincope.report.sections.source import Source
from traincope.report.sections.utilization import utilization
from traincope.report.sections.values import sentences
from traincope.report.text.text import render
from traincope.timeline import open_run
from traincope.viewer.pages import PAGES, Asked
from traincope.viewer.view import View


def words(component: object) -> str:
    """All texts of a page."""
    if isinstance(component, str):
        return component
    inner = component if isinstance(component, list | tuple) else getattr(component, "children", None) or ()
    return "".join(map(words, inner if isinstance(inner, list | tuple) else [inner]))


@pytest.mark.parametrize("name", ["demo", "demo-3d", "faults/killed"])
def test_leads_and_lines_are_the_same_in_all_media(name: str, tmp_path: Path) -> None:
    library = shelf(SAMPLES / name, cache=tmp_path / "cache")
    asked = Asked(view=View(), opened=library[0], library=library, theme="light")
    analysis = analyze(open_run(SAMPLES / name))
    source = Source(analysis=analysis, document=to_document(analysis))
    sections = [ledger(source), utilization(source.document), recording(source.document)]
    said = [sentence for section in sections for sentence in sentences(source.document, section)]
    file = io.StringIO()
    render(analysis, Console(file=file, width=10_000))
    page = unescape(re.sub("<[^>]*>", "", re.sub("<script.*?</script>", "", to_html(analysis), flags=re.DOTALL)))
    viewer = "".join(words(page.render(asked)) for page in PAGES if page.slug in ("verdict", "ledger"))
    library.close()
    assert len(said) > 6
    for sentence in said:
        assert sentence in file.getvalue()
        assert sentence in page
        assert sentence in viewer
