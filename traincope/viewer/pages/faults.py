"""Faults page: hangs, faults and events over the run, goodput, interruptions, and the values that were logged."""

from collections.abc import Sequence

from dash import dcc
from dash.development.base_component import Component

from traincope.figures.drawing.time_axis import instant
from traincope.figures.run.faults import bands_of, fault_timeline
from traincope.report.sections.goodput import goodput
from traincope.report.sections.logged import logged
from traincope.report.sections.reliability import is_logbook, reliability
from traincope.report.text.sections.faults import date, step_of
from traincope.units import MISSING, numbers
from traincope.viewer.components import absent, section, table
from traincope.viewer.pages import explained
from traincope.viewer.pages.hang_section import hang_section
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.sections import rendered

MAX_ROWS = 200


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    shown: list[Component] = []
    if analysis.hangs:
        shown.append(hang_section(analysis, view=asked.view, origin_ns=asked.tiles.header.origin_ns))
    if analysis.faults:
        began, ended = _began_ns(asked), max(fault.at_ns for fault in analysis.faults)
        end_ns = max(analysis.end_ns or ended, ended)
        drawn = asked.graph(fault_timeline(analysis.faults, began_ns=began, end_ns=end_ns, bands=bands_of(analysis)))
        shown.append(section("Faults and events", drawn, _table(asked)))
    else:
        shown.append(absent("No fault, checkpoint, evaluation or event was recorded."))
    logbook = is_logbook(asked.document)
    if analysis.goodput is not None or not logbook:
        shown.append(rendered(goodput(asked.source), asked))
    if analysis.reliability is not None:
        shown.append(rendered(reliability(asked.source), asked))
    values = logged(asked.source)
    if values.missing is None or not logbook:
        shown.append(rendered(values, asked))
    return shown


def _began_ns(asked: Asked) -> int:
    """First record of the first attempt."""
    job = asked.analysis.goodput
    began_ns = [] if job is None else [attempt.began_ns for attempt in job.attempts]
    began_ns += [fault.at_ns for fault in asked.analysis.faults if fault.timed and asked.analysis.timeline.run.logbook]
    return min([*began_ns, asked.tiles.header.origin_ns])


def _table(asked: Asked) -> Component:
    origin, began = asked.tiles.header.origin_ns, _began_ns(asked)
    described, logbook = asked.document["run"]["attempt"], is_logbook(asked.document)
    several = len({fault["attempt"] for fault in asked.document["faults"]}) > 1
    rows = []
    for fault in asked.document["faults"][:MAX_ROWS]:
        at, since = fault["at_ns"] - origin, instant(fault["at_ns"] - began, step_ns=1_000_000)
        since = date(fault) if logbook else since
        timeline = asked.view.on("timeline", at=at, ranks=numbers(fault["ranks"][:8]) or None)
        rows.append(
            [
                dcc.Link(since, href=timeline.address)
                if not logbook and fault["attempt"] in (None, described)
                else since,
                *([str(fault["attempt"])] if several else []),
                explained.link(asked.view, fault["kind"], fault["kind"].replace("_", " ")),
                numbers(fault["ranks"], "rank") if fault["ranks"] else "the job",
                step_of(fault) or MISSING,
                fault["what"],
                fault["evidence"],
            ]
        )
    heads = ("time", *(["attempt"] if several else []), "kind", "ranks", "step", "event", "evidence")
    return table(heads, rows, numbers_from=99)


PAGE = Page(slug="faults", title="Faults", needs=Needs.ANALYSIS, render=render)
