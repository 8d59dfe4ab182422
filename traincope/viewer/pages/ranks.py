"""Ranks page: own work of each rank over the steps, stragglers, sampled stacks, experts, and the ranks' clocks."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from traincope.report.sections.experts import experts
from traincope.report.sections.ranks import ranks
from traincope.report.sections.sampled_stacks import sampled_stacks
from traincope.units import numbers
from traincope.viewer.components import absent, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.sections import rendered

MAX_ROWS = 64


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    shown = [rendered(ranks(asked.source), asked)]
    missing = asked.document["run"]["missing_ranks"]
    if missing:
        shown.append(absent(f"No records from {numbers(missing, 'rank')}. No figure includes them."))
    stacks = sampled_stacks(asked.source)
    if stacks.missing is None:
        shown.append(rendered(stacks, asked))
    if analysis.experts is not None:
        shown.append(rendered(experts(asked.source), asked))
    return [*shown, section("Clocks", _clocks(asked), note="times of two ranks compare only within these bounds")]


def _clocks(asked: Asked) -> Component:
    document, clocks = asked.document, asked.analysis.timeline.clocks
    if not clocks:
        return absent("No records of any rank, so clocks are unknown.")
    rows = [
        [
            f"rank {clock.rank}",
            clock.source,
            number(document, "clock", at, "bound_ns", form="duration"),
            number(document, "clock", at, "drift_ppm", form="ppm"),
        ]
        for at, clock in enumerate(clocks[:MAX_ROWS])
    ]
    more = len(clocks) - MAX_ROWS
    return html.Div(
        [
            table(("rank", "source", "error bound", "drift, ppm"), rows, numbers_from=2),
            *([html.P(f"and {more} more")] if more > 0 else []),
        ]
    )


PAGE = Page(slug="ranks", title="Ranks", needs=Needs.ANALYSIS, render=render)
