"""Numbers of one thing are one number: those of every page of the viewer are those of `report --format json`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dash import html
from dash.development.base_component import Component

from tests.report.places import value_at
from tests.viewer.library.reading import shelf
from traincope.analysis import analyze
from traincope.report.document.document import to_document, to_json
from traincope.report.sections.forms import FORMS
from traincope.timeline import open_run
from traincope.viewer.pages import PAGES, Asked
from traincope.viewer.view import View

SAMPLES = Path(__file__).parents[3] / "sample_runs"
WITH_NUMBERS = {"verdict", "ledger", "pipeline", "communication", "critical-path", "ranks", "faults", "memory"}


def shown(part: object) -> Iterator[Any]:
    """Numbers of a page."""
    if isinstance(part, html.Data):
        yield part
    elif isinstance(part, list | tuple):
        for each in part:
            yield from shown(each)
    elif isinstance(part, Component):
        yield from shown(getattr(part, "children", None))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo-3d", "restart"])
def test_every_number_of_a_page_is_that_of_the_report(name: str, tmp_path: Path) -> None:
    document = json.loads(to_json(to_document(analyze(open_run(SAMPLES / name)))))
    library = shelf(SAMPLES / name, cache=tmp_path / "cache")
    seen: dict[str, set[str]] = {}
    for page in PAGES:
        asked = Asked(view=View(page=page.slug), opened=library[0], library=library, theme="light")
        for number in shown(page.render(asked)):
            place = number.to_plotly_json()["props"]
            if place["data-of"] != "report":
                continue
            value = value_at(document, place["data-at"], place.get("data-per"))
            assert place["value"] == repr(value), (page.slug, place["data-at"])
            assert place["children"] == FORMS[place["data-as"]](value), (page.slug, place["data-at"])
            seen.setdefault(place["data-at"], set()).add(page.slug)
    library.close()
    assert len(seen) > 100
    if name == "demo-3d":
        assert set.union(*seen.values()) >= WITH_NUMBERS
