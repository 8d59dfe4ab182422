"""The faults page."""

from pathlib import Path

import traincope
from tests.viewer.library.reading import shelf
from traincope.viewer.library.library import Library
from traincope.viewer.pages.faults import PAGE
from traincope.viewer.pages.page import Asked
from traincope.viewer.view import View


def test_faults_are_drawn_on_the_timelines_clock(tmp_path: Path) -> None:
    """A run's manifest is written before its first record; table and timeline count from the record."""
    with traincope.run(tmp_path / "run"):
        traincope.event("changed the data")
    library = shelf(tmp_path / "run", cache=tmp_path / "cache")
    assert drawn_at(library) == [(event_ns(library) - origin_ns(library)) / 1e9]


def drawn_at(library: Library) -> list[float]:
    """Seconds of the marks in the page's first figure."""
    asked = Asked(view=View(page="faults"), opened=library[0], library=library, theme="light")
    first = PAGE.render(asked)[0].to_plotly_json()["props"]["children"]
    (figure,) = [child.figure for part in first for child in part._traverse() if hasattr(child, "figure")]
    return list(figure.data[0].x)


def event_ns(library: Library) -> int:
    document = library[0].document
    assert document is not None
    (fault,) = document["faults"]
    return fault["at_ns"]


def origin_ns(library: Library) -> int:
    tiles = library[0].tiles
    assert tiles is not None
    return tiles.header.origin_ns
