"""Verdict page: the findings, each with its evidence, advice and links, next to the waterfall of step time."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.report.schema import Finding
from traincope.report.sections.ledger import summary
from traincope.report.sections.recording import recording
from traincope.report.sections.reliability import is_logbook
from traincope.report.sections.utilization import utilization
from traincope.report.sections.verdict import verdict
from traincope.units import numbers
from traincope.viewer.numbers import number, tile
from traincope.viewer.pages import explained
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.sections import rendered

MAX_RANKS = 8
"""Ranks of a finding that its timeline link shows."""


def render(asked: Asked) -> Sequence[Component]:
    document = asked.document
    findings, ledger = document["verdict"], document["ledger"]
    judged = verdict(findings, cost=None if ledger is None else ledger["cost"])
    return [
        html.Div(_tiles(asked), className="tiles"),
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


def _tiles(asked: Asked) -> list[Component]:
    document = asked.document
    if is_logbook(document):
        return [
            tile("interruptions", number(document, "reliability", "num_interruptions", form="count")),
            tile("between two", number(document, "reliability", "mtbf", "ns", form="duration"), note="mean time"),
            tile("in runs", number(document, "reliability", "running_ratio", form="share"), note="of the time"),
            tile(
                "goodput", number(document, "reliability", "productive_ratio", form="share"), note="of the job's time"
            ),
            tile("ranks", number(document, "run", "world_size", form="count")),
        ]
    mfu = tile("MFU", number(document, "utilization", "mfu", form="share"))
    return [
        mfu,
        tile("step time", number(document, "run", "step_ns", form="duration"), note="median"),
        tile("counted steps", number(document, "run", "steps", form="count")),
        tile("ranks", number(document, "run", "world_size", form="count")),
        tile("tokens per second", number(document, "utilization", "tokens_per_second", form="count")),
        tile("goodput", number(document, "goodput", "productive_ratio", form="share"), note="of the job's time"),
        tile("pipeline bubble", number(document, "bubble", "fraction_ratio", form="share"), note="of step time"),
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
