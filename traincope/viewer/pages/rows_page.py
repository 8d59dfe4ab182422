"""Pages of a run of very many ranks until its events are read: the first one stands on rows and last records."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.report.document.job_summary import SummaryDocument
from traincope.report.sections.job_summary import job_summary, stands_on
from traincope.units import count
from traincope.viewer.components import absent, plain
from traincope.viewer.library.library import Opened
from traincope.viewer.numbers import number, tile
from traincope.viewer.pages import explained
from traincope.viewer.pages.page import Asked
from traincope.viewer.sections import rendered
from traincope.viewer.view import View

DETAIL, ALL = "detail", "all"
"""Parameter of the address that asks for the events, and its value."""
REQUEST = "request"
"""Parameter with the number of the request, from the second on."""


def request_for_events(view: View) -> int:
    """Number of the request for the events, 1 for the first; 0 without one."""
    return (view.whole(REQUEST) or 1) if view.text(DETAIL) == ALL else 0


def render(asked: Asked, summary: SummaryDocument) -> Sequence[Component]:
    """The verdict and the mean step."""
    links = [[explained.link(asked.view, finding["kind"], "explanation")] for finding in summary["verdict"]]
    judged, *others = job_summary(summary)
    begin = f"{stands_on(summary)} The other pages need all events. "
    return [
        *_failures(asked.opened),
        html.P([plain(begin), *_offer(asked, summary)], className="absent"),
        html.Div(_tiles(summary), className="tiles"),
        html.Div(
            [
                rendered(judged, asked, document=summary, links=links),
                *(rendered(each, asked, document=summary) for each in others),
            ],
            className="side-by-side",
        ),
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
