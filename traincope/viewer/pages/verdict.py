"""Verdict page: the findings, each with its evidence, advice and links, next to the waterfall of step time."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.report.schema import Finding
from traincope.report.sections.head import headline
from traincope.report.sections.ledger import summary
from traincope.report.sections.recording import recording
from traincope.report.sections.reliability import is_logbook
from traincope.report.sections.utilization import utilization
from traincope.report.sections.verdict import verdict
from traincope.units import numbers
from traincope.viewer.numbers import component, tile
from traincope.viewer.pages import explained
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.sections import rendered

MAX_RANKS = 8
"""Ranks of a finding that its timeline link shows."""


def render(asked: Asked) -> Sequence[Component]:
    document = asked.document
    findings, ledger = document["verdict"], document["ledger"]
    tiles = [tile(name, component(document, shown)) for name, shown in headline(document).items()]
    judged = verdict(findings, cost=None if ledger is None else ledger["cost"])
    return [
        html.Div(tiles, className="tiles"),
        html.Div(
            [
                rendered(judged, asked, links=[_links(asked, finding) for finding in findings]),
                *([] if ledger is None else [rendered(summary(document), asked)]),
            ],
            className="side-by-side",
        ),
        *([] if is_logbook(document) else [rendered(utilization(document), asked)]),
        rendered(recording(document), asked),
    ]


def _links(asked: Asked, finding: Finding) -> list[Component | str]:
    """Links to the explanation, the steps and the ranks of a finding."""
    step = finding["steps"][0] if finding["steps"] else None
    ranks = numbers(finding["ranks"][:MAX_RANKS]) or None
    explanation = explained.link(asked.view, finding["kind"], "explanation")
    if is_logbook(asked.document):
        return [explanation, " · ", dcc.Link("entries", href=asked.view.on("faults").address)]
    timeline = asked.view.on("timeline", step=step, ranks=ranks)
    title = f"timeline{f' of step {step}' if step is not None else ''}"
    return [
        explanation,
        " · ",
        dcc.Link(title, href=timeline.address),
        " · ",
        dcc.Link("ranks", href=asked.view.on("ranks").address),
    ]


PAGE = Page(slug="verdict", title="Verdict", needs=Needs.DOCUMENT, render=render)
