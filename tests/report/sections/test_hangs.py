"""Hangs as a section of data, and on a page, from runs made by hand."""

from dataclasses import replace

from tests.analysis.faults.hangs.test_stops import LAST_NS, analysis, light, stuck, victim
from tests.analysis.faults.hangs.test_stops import WAITING as IN_COMMUNICATION
from traincope.analysis import Analysis
from traincope.report.document.document import to_document
from traincope.report.html.section import on_page
from traincope.report.schema import Document
from traincope.report.sections.hangs import hangs
from traincope.report.sections.section import Findings, Link, Listing, Section, Table
from traincope.report.sections.source import Source
from traincope.report.sections.values import plain


def section_of(result: Analysis) -> tuple[Section, Document]:
    document = to_document(result)
    return hangs(Source(analysis=result, document=document)), document


def table_of(section: Section) -> Table:
    (table,) = [part for part in section.parts if isinstance(part, Table)]
    return table


def facts(section: Section, document: Document) -> dict[str, str]:
    return {plain(document, name): plain(document, value) for name, value in table_of(section).rows}


def test_the_culprit_its_line_and_what_to_do_are_shown() -> None:
    section, document = section_of(analysis(victim(0), stuck(1)))
    assert facts(section, document) == {
        "kind": "stuck",
        "culprits": "rank 1",
        "victims": "rank 0",
        "in": "all_reduce on dp",
        "stood at": "train.py:9",
        "step": "5",
        "since": "520 ms after the first record",
        "lasted": "34.0 s at least",
        "noticed by the agent": "after 34.0 s",
    }
    findings, _, stack = section.parts
    assert isinstance(findings, Findings)
    (item,) = findings.items
    assert (item.kind.words, item.advice) == (
        "stall",
        "Look at train.py:9 (process 1001 on host-boot). It may go on by itself.",
    )
    assert stack == Listing(
        caption="Stack of rank 1, innermost first",
        lines=("wait (threading.py:327)", "load (train.py:9)", "main (train.py:41)"),
    )
    page = on_page(section, document).html
    assert "<pre>wait (threading.py:327)\nload (train.py:9)\nmain (train.py:41)\n</pre>" in page
    assert 'data-at="/hangs/0/lasted_ns" data-as="duration">34.0 s</data> at least' in page
    (link,) = [cell for row in table_of(section).rows for cell in row if isinstance(cell, Link)]
    assert (link.page, link.at_ns, link.ranks) == ("timeline", LAST_NS, (0, 1))


def test_an_unknown_culprit_is_called_so_and_has_no_stack() -> None:
    section, document = section_of(analysis(light(0, IN_COMMUNICATION), light(1, IN_COMMUNICATION)))
    assert facts(section, document)["culprits"] == "unknown"
    assert not any(isinstance(part, Listing) for part in section.parts)


def test_the_advice_is_shown_where_the_finding_adds_the_error_of_a_culprit() -> None:
    result = analysis(victim(0), stuck(1))
    (finding,) = [each for each in result.verdict if each.kind == "stall"]
    longer = replace(finding, evidence=f"{finding.evidence}; then rank 1 raised ValueError: bad sample at model.py:41")
    section, _ = section_of(replace(result, verdict=(longer,)))
    (findings,) = [part for part in section.parts if isinstance(part, Findings)]
    assert [(item.evidence, item.advice) for item in findings.items] == [(longer.evidence, longer.advice)]


def test_a_hang_that_another_finding_explains_has_its_evidence_as_a_fact() -> None:
    result = analysis(victim(0), stuck(1))
    section, document = section_of(replace(result, verdict=()))
    assert not any(isinstance(part, Findings) for part in section.parts)
    assert facts(section, document)["evidence"] == result.hangs[0].evidence
