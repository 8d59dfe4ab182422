"""Pages of a run of very many ranks until its events are read: the first one stands on rows and last records."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.report.document.job_summary import SummaryDocument
from traincope.report.sections.verdict import item
from traincope.report.text.job_summary import stands_on
from traincope.units import count, duration, share
from traincope.viewer.components import absent, article, plain, section, table
from traincope.viewer.library.library import Opened
from traincope.viewer.numbers import number, tile
from traincope.viewer.pages import explained
from traincope.viewer.pages.page import Asked
from traincope.viewer.view import View

DETAIL, ALL = "detail", "all"
"""Parameter of the address that asks for the events, and its value."""
REQUEST = "request"
"""Parameter with the number of the request, from the second on."""
MAX_PROBLEMS = 20


def request_for_events(view: View) -> int:
    """Number of the request for the events, 1 for the first; 0 without one."""
    return (view.whole(REQUEST) or 1) if view.text(DETAIL) == ALL else 0


def render(asked: Asked, summary: SummaryDocument) -> Sequence[Component]:
    """The verdict and the mean step."""
    findings = [
        article(
            item(finding, at, cost=None),
            at,
            document=summary,
            links=[explained.link(asked.view, finding["kind"], "explanation")],
        )
        for at, finding in enumerate(summary["verdict"])
    ]
    begin = f"{stands_on(summary)} The other pages need all events. "
    return [
        *_failures(asked.opened),
        html.P([plain(begin), *_offer(asked, summary)], className="absent"),
        html.Div(_tiles(summary), className="tiles"),
        html.Div(
            [section("Verdict", *(findings or [absent(_no_finding(summary))])), *_terms(summary)],
            className="side-by-side",
        ),
        *_problems(summary),
    ]


def render_other(asked: Asked, summary: SummaryDocument) -> Sequence[Component]:
    """A page that needs events."""
    needs = f"This page needs the events of all {count(summary['ranks'], 'rank')}, which are not read yet. "
    return [*_failures(asked.opened), html.P([plain(needs), *_offer(asked, summary)], className="absent")]


def _failures(opened: Opened) -> list[Component]:
    """What could not be read, one line each."""
    lines = [opened.problem] if opened.problem else []
    if opened.events_problem:
        lines.append(f"The events could not be read: {opened.events_problem}")
    return [absent(line) for line in lines]


def _offer(asked: Asked, summary: SummaryDocument) -> list[Component | str]:
    """A link that asks for the events; while they are read, a sentence."""
    if asked.library.is_reading_events(asked.view.run):
        stage = f": {asked.opened.stage}" if asked.opened.stage else ""
        return [plain(f"The events of all ranks are being read{stage}. The pages open when they are ready.")]
    failed = asked.opened.failed_request
    address = asked.view.but(**{DETAIL: ALL, REQUEST: failed + 1 if failed else None}).address
    return [
        dcc.Link(f"Read all events of {summary['ranks']:,} ranks", href=address, id="read-events"),
        ". This takes time and memory for all of them.",
    ]


def _tiles(summary: SummaryDocument) -> list[Component]:
    return [
        tile("step time", number(summary, "mean_step_ns", form="duration"), note="mean"),
        tile("ranks", number(summary, "world_size", form="count")),
        tile("rows of steps", number(summary, "rows", form="count")),
        tile("last step", number(summary, "last_step", form="count")),
    ]


def _no_finding(summary: SummaryDocument) -> str:
    steps, needed = summary["compared_steps"], summary["compared_steps_needed"]
    if steps < needed:
        return f"Nothing was found. A straggler is named after {needed:,} steps; {steps:,} were compared."
    return "Rows and last records show no hang, no failed rank and no straggler."


def _terms(summary: SummaryDocument) -> list[Component]:
    terms_ns, step_ns = summary["terms_ns"], summary["mean_step_ns"]
    if not terms_ns or not step_ns:
        return []
    total_ns = sum(terms_ns.values())
    rows = [
        [term, share(ns / total_ns), number(summary, "terms_ns", term, form="duration")]
        for term, ns in sorted(terms_ns.items(), key=lambda item: -item[1])
    ]
    note = f"mean step {duration(step_ns)}; a transfer contains the waits for ranks of other hosts"
    return [section("Where the time went", table(("term", "share", "per step"), rows), note=note)]


def _problems(summary: SummaryDocument) -> list[Component]:
    lines = summary["problems"][:MAX_PROBLEMS]
    return [section("Data quality", html.Ul([html.Li(plain(line)) for line in lines]))] if lines else []
