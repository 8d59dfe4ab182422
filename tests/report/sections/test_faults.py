"""Faults as a section of data: text, HTML and the viewer show the same times, steps and ranks."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import traincope
from tests.report.example import START_NS, analysis
from tests.viewer.library.reading import shelf
from tests.viewer.texts import texts
from traincope.analysis import Analysis, Fault, FaultKind
from traincope.report.document.document import to_document
from traincope.report.html.section import on_page
from traincope.report.sections.faults import faults
from traincope.report.sections.section import Lines, On, Section, Table
from traincope.report.sections.source import Source
from traincope.report.sections.values import plain
from traincope.units import duration
from traincope.viewer.library.library import Library
from traincope.viewer.pages import FAULTS
from traincope.viewer.pages.page import Asked
from traincope.viewer.view import View

SAMPLES = Path(__file__).parents[3] / "sample_runs"


def source_of(result: Analysis) -> Source:
    return Source(analysis=result, document=to_document(result))


def table(section: Section, on: On) -> Table:
    (found,) = [part for part in section.parts if isinstance(part, Table) and part.on is on]
    return found


def cells(source: Source, on: On) -> list[list[str]]:
    return [[plain(source.document, cell) for cell in row] for row in table(faults(source), on).rows]


def asked(library: Library) -> Asked:
    return Asked(view=View(page="faults"), opened=library[0], library=library, theme="light")


def test_times_count_from_the_first_record_as_the_timeline_does(tmp_path: Path) -> None:
    """A run's manifest is written before its first record."""
    with traincope.run(tmp_path / "run"):
        traincope.event("changed the data")
    library = shelf(tmp_path / "run", cache=tmp_path / "cache")
    document, tiles = library[0].document, library[0].tiles
    assert document is not None
    assert tiles is not None
    (fault,) = document["faults"]
    assert document["run"]["start"] < tiles.header.origin_ns
    shown, since_ns = list(FAULTS.render(asked(library))[1]._traverse()), fault["at_ns"] - tiles.header.origin_ns
    (part,) = [each for each in shown if hasattr(each, "figure")]
    assert list(part.figure.data[0].x) == [since_ns / 1e9]
    after, explanation = [each for each in shown if hasattr(each, "href")]
    assert (after.children, after.href) == (duration(since_ns), f"/timeline?at={since_ns}&ranks=0")
    assert (explanation.children, explanation.href) == ("event", "/explained?kind=event")


@pytest.mark.parametrize(
    ("name", "heads", "first"),
    [
        ("faults/checkpoint-stuck", ("after", "step", "rank"), ("4.04 s", "2", "0, 1")),
        ("restart", ("after", "attempt", "step", "rank"), ("1.38 s", "0", "-", "0, 1")),
        ("opt-175b", ("at",), ("2021-11-06 16:56",)),
    ],
)
def test_all_media_show_the_same_times_steps_and_ranks(
    name: str, heads: tuple[str, ...], first: tuple[str, ...], tmp_path: Path
) -> None:
    """The viewer's analysis keeps few records: times count from the first of all."""
    library = shelf(SAMPLES / name, cache=tmp_path / "cache")
    source = source_of(traincope.analyze(traincope.open_run(SAMPLES / name)))
    section, shown = faults(source), cells(source, On.SCREEN)
    assert table(section, On.CONSOLE).heads == (*heads, "")
    assert table(section, On.SCREEN).heads == (*heads, "kind", "event", "evidence", "duration")
    places = [tuple(row[: len(heads)]) for row in shown]
    assert places[0] == first
    of_ends = [row for row in cells(source, On.CONSOLE) if not row[-1].startswith("ended after that")]
    assert {tuple(row[:-1]) for row in of_ends} <= set(places)
    page = [text for text in re.split(r"<[^>]*>", on_page(section, source.document).html) if text]
    viewer = texts(FAULTS.render(asked(library)))
    assert [row for row in shown if not in_order(row, page) or not in_order(row, viewer)] == []
    assert cells(asked(library).source, On.SCREEN) == shown
    library.close()


def in_order(row: list[str], texts: list[str]) -> bool:
    known = [cell for cell in row if cell]
    return any(texts[at : at + len(known)] == known for at in range(len(texts)))


def test_a_fault_before_the_first_record_has_a_negative_time() -> None:
    early = Fault(kind=FaultKind.XID, at_ns=START_NS - 2_000_000_000, ranks=(1,), what="XID 79")
    source = source_of(replace(analysis(), faults=(early,)))
    assert cells(source, On.CONSOLE) == [["-2.00 s", "-", "1", "XID 79"]]


def test_a_page_cuts_events_before_faults_and_says_so() -> None:
    flood = [Fault(kind=FaultKind.EVENT, at_ns=START_NS + at, what=f"event {at}") for at in range(300)]
    late = Fault(kind=FaultKind.SPIKE, at_ns=START_NS + 300, what="loss is 9")
    source = source_of(replace(analysis(), faults=(*flood, late)))
    shown = [row[4] for row in cells(source, On.SCREEN)]
    assert shown == [*(f"event {at}" for at in range(199)), "loss is 9"]
    counts = [part.lines for part in faults(source).parts if isinstance(part, Lines) and part.on is On.SCREEN]
    assert counts == [("1 fault, 300 events; 200 of 301 in the table, the first that went wrong",)]
    assert cells(source, On.CONSOLE) == [["300 ns", "-", "all", "loss is 9"]]
