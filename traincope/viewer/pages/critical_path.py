"""Critical path: which rank, doing what, the end of a step was waiting for."""

from collections.abc import Sequence

from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import CriticalPath
from traincope.figures.critical_path import critical_path_step, fits
from traincope.units import count, duration, share
from traincope.viewer.components import absent, said, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

MOST_ROWS = 40


def render(asked: Asked) -> Sequence[Component]:
    path = asked.analysis.critical_path
    if path is None or not path.steps:
        return [absent(f"There is no critical path: {path.reason}." if path and path.reason else _why_not(asked))]
    shown = path.median_step
    drawn = asked.graph(critical_path_step(shown)) if fits(path) else absent("It is too long to be drawn.")
    there = asked.view.on("timeline", step=shown.number)
    link = html.P(dcc.Link(f"step {shown.number} on the timeline", href=there.address))
    note = f"step {shown.number}, of median length; waiting is drawn as what was waited for"
    return [
        section("One step", drawn, link, note=note),
        section("All steps, by rank and term", _shares(path), note=f"{count(len(path.steps), 'step')} together"),
        section("By term", _terms(asked), html.Ul([html.Li(said(line)) for line in _trust(path)])),
    ]


def _why_not(asked: Asked) -> str:
    if asked.document["run"]["imported"]:
        return "The run was made of kernel traces alone: nothing is known of steps."
    return "There is no critical path: no step was completed by all ranks."


def _shares(path: CriticalPath) -> Component:
    rows = [
        [f"rank {rank}, {term.replace('_', ' ')}", share(ns / path.wall_ns if path.wall_ns else None), duration(ns)]
        for (rank, term), ns in list(path.shares().items())[:MOST_ROWS]
    ]
    return table(("what", "of all", "took"), rows)


def _terms(asked: Asked) -> Component:
    document = asked.document
    path = document["critical_path"]
    rows = [
        [term.replace("_", " "), number(document, "critical_path", "terms", term, form="duration")]
        for term in (path["terms"] if path else ())
    ]
    return table(
        ("term", "on the path"), [*rows, ["all", number(document, "critical_path", "wall_ns", form="duration")]]
    )


def _trust(path: CriticalPath) -> list[str]:
    lines = []
    if path.untold_ns:
        lines.append(f"of {duration(path.untold_ns)} of its transfers nobody knows whether they waited for a rank")
    if path.clock_error_ns is None:
        lines.append("nothing bounds how far the ranks' clocks are apart")
    elif path.clock_error_ns:
        lines.append(f"ranks' times may be {duration(path.clock_error_ns)} from each other's")
    return lines


PAGE = Page(slug="critical-path", title="Critical path", needs=Needs.ANALYSIS, render=render)
