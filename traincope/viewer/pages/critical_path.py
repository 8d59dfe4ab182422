"""Critical path page: the chain of work across ranks that sets the length of a step."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import CriticalPath
from traincope.figures.ranks.critical_path import critical_path_step, fits
from traincope.units import count, duration, share
from traincope.viewer.components import absent, plain, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

MAX_ROWS = 40


def render(asked: Asked) -> Sequence[Component]:
    path = asked.analysis.critical_path
    if path is None or not path.steps:
        return [absent(f"No critical path: {path.reason}." if path and path.reason else _why_not(asked))]
    shown = path.median_step
    drawn = asked.graph(critical_path_step(shown)) if fits(path) else absent("The path has too many segments to draw.")
    timeline = asked.view.on("timeline", step=shown.number)
    link = html.P(dcc.Link(f"step {shown.number} on the timeline", href=timeline.address))
    note = f"step {shown.number}, the step of median length; a wait is replaced by the work it waited for"
    return [
        section("Critical path of one step", drawn, link, note=note),
        section("By rank and term", _shares(path), note=f"sums over {count(len(path.steps), 'step')}"),
        section("By term", _terms(asked, path), html.Ul([html.Li(plain(line)) for line in _limits(path)])),
    ]


def _why_not(asked: Asked) -> str:
    if asked.document["run"]["imported"]:
        return "The imported kernel traces have no marks of steps, or the error of their clocks is unknown."
    return "No critical path: no step was completed by all ranks."


def _shares(path: CriticalPath) -> Component:
    rows = [
        [f"rank {rank}, {term}", share(ns / path.wall_ns if path.wall_ns else None), duration(ns)]
        for (rank, term), ns in list(path.shares().items())[:MAX_ROWS]
    ]
    return table(("rank and term", "share of step time", "time"), rows)


def _terms(asked: Asked, path: CriticalPath) -> Component:
    document = asked.document
    rows = [[term, number(document, "critical_path", "terms", term, form="duration")] for term in path.terms]
    rows.append(["all terms", number(document, "critical_path", "wall_ns", form="duration")])
    return table(("term", "time on the path"), rows)


def _limits(path: CriticalPath) -> list[str]:
    lines = []
    if path.untold_ns:
        lines.append(f"{duration(path.untold_ns)} of transfers on the path may contain wait for another rank")
    if path.clock_error_ns is None:
        lines.append("the offset between the ranks' clocks is unknown")
    elif path.clock_error_ns:
        lines.append(f"clocks of two ranks may differ by up to {duration(path.clock_error_ns)}")
    return lines


PAGE = Page(slug="critical-path", title="Critical path", needs=Needs.ANALYSIS, render=render)
