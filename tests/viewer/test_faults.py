"""The page of faults."""

from pathlib import Path

import traincope
from tests.viewer.reading import shelf
from traincope.viewer.library import Library
from traincope.viewer.pages.faults import PAGE
from traincope.viewer.pages.page import Asked
from traincope.viewer.view import View


def test_what_happened_is_drawn_on_the_clock_of_the_timeline(tmp_path: Path) -> None:
    """A run's card is written before its first record; the table and the timeline count from the record."""
    with traincope.run(tmp_path / "run"):
        traincope.event("changed the data")
    library = shelf(tmp_path / "run", cache=tmp_path / "cache")
    assert drawn_at(library) == [(event_ns(library) - origin_ns(library)) / 1e9]


def drawn_at(library: Library) -> list[float]:
    """Seconds at which the page's first figure has marks."""
    asked = Asked(view=View(page="faults"), opened=library[0], library=library, theme="light")
    first = PAGE.render(asked)[0].to_plotly_json()["props"]["children"]
    (figure,) = [found.figure for one in first for found in one._traverse() if hasattr(found, "figure")]
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
