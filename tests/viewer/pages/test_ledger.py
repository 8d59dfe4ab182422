"""The ledger page."""

from pathlib import Path

from tests.viewer.library.reading import shelf
from traincope.viewer.library.library import Library
from traincope.viewer.pages.ledger import PAGE
from traincope.viewer.pages.page import Asked
from traincope.viewer.view import View

SAMPLE = Path(__file__).parents[3] / "sample_runs" / "demo"


def test_terms_that_no_probe_measures_are_named_below_the_numbers(tmp_path: Path) -> None:
    library: Library = shelf(SAMPLE, cache=tmp_path / "cache")
    asked = Asked(view=View(page="ledger"), opened=library[0], library=library, theme="light")
    texts = [child.children for part in PAGE.render(asked) for child in part._traverse() if hasattr(child, "children")]
    assert "not measured, so part of unattributed: exposed_memory, compile, sync, launch_gap" in texts
