"""The page of explanations, and the table of energy on the hardware page."""

from types import SimpleNamespace
from typing import Any, cast

from dash import dcc

from tests.analysis.efficiency.test_energy import on_gpu, readings, result, steps
from traincope.explanations import explanations
from traincope.report.document.document import to_document
from traincope.report.sections.energy import energy
from traincope.report.sections.source import Source
from traincope.viewer.pages.explained import PAGE, link
from traincope.viewer.pages.page import Asked
from traincope.viewer.sections import rendered as component
from traincope.viewer.view import View


def parts(of: Any) -> list[Any]:
    return [each for part in of for each in (part, *part._traverse())]


def rendered(view: View) -> list[Any]:
    return parts(PAGE.render(cast(Asked, SimpleNamespace(view=view))))


def test_a_link_leads_to_the_entry_of_its_kind() -> None:
    address = link(View(parameters={"run": ("1",)}), "hot_expert", "explanation").href
    assert address == "/explained?run=1&kind=hot_expert"
    shown = rendered(View.of("/explained", "?run=1&kind=hot_expert"))
    (entry,) = [part for part in shown if isinstance(part, dcc.Markdown)]
    assert entry.children == explanations()["hot_expert"].text


def test_without_a_known_kind_the_page_lists_all_entries() -> None:
    for search in ("", "?kind=%3Cscript%3E"):
        shown = rendered(View.of("/explained", search))
        assert not [part for part in shown if isinstance(part, dcc.Markdown)]
        listed = {part.children for part in shown if isinstance(part, dcc.Link)}
        assert listed == {entry.title for entry in explanations().values()}


def test_energy_is_a_table_of_gpus_and_their_sum() -> None:
    known = result(on_gpu(0, *steps(11), *readings(100), uuid="a"), on_gpu(1, *steps(11), uuid="b"))
    source = Source(analysis=known, document=to_document(known))
    shown = parts([component(energy(source), cast(Asked, SimpleNamespace(document=source.document)))])
    texts = [part.children for part in shown if hasattr(part, "children")]
    assert "300.0" in texts
    assert "100.0" in texts
    assert "of the job unknown: no energy of a GPU was recorded (rank 1; hardware probe on)" in texts
