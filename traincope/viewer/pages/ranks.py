"""Ranks page: own work of each rank over the steps, stragglers, experts, and the ranks' clocks."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from traincope.analysis import own_work
from traincope.analysis.stragglers.stragglers import why_none
from traincope.analysis.verdict.losses.straggler_findings import longer
from traincope.figures.efficiency.experts import expert_load
from traincope.figures.ranks.heatmap import rank_heatmap
from traincope.units import milliseconds, numbers, share
from traincope.viewer.components import absent, linked, plain, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

MAX_ROWS = 64
WAITS = ("compute_ns", "own_wait_ns", "straggler_wait_ns")


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    work = own_work(analysis.timeline, analysis.ledger)
    shown: list[Component] = []
    if work is None:
        shown.append(absent("No complete step was recorded, so ranks cannot be compared."))
    elif len(work.ranks) == 1:
        shown.append(absent("The run has one rank, so there are no peers to compare it with."))
    else:
        note = "relative to the median of the rank's peers in that step; click a cell to open it on the timeline"
        shown.append(section("Own work of each rank", asked.graph(rank_heatmap(work), id=linked("cell")), note=note))
    missing = asked.document["run"]["missing_ranks"]
    if missing:
        shown.append(absent(f"No records from {numbers(missing, 'rank')}. No figure includes them."))
    if analysis.ledger.rank_steps:
        shown.append(section("Stragglers", *_named(asked), _waits(asked), note="sums over the counted steps"))
    if analysis.experts is not None:
        shown.append(section("Experts", asked.graph(expert_load(analysis.experts))))
    return [*shown, section("Clocks", _clocks(asked), note="times of two ranks compare only within these bounds")]


def _named(asked: Asked) -> list[Component]:
    stragglers = asked.analysis.stragglers
    if not stragglers.named:
        return [html.P(f"No straggler: {why_none(stragglers)}.")]
    return [
        html.P(
            plain(
                f"Rank {straggler.rank} is a straggler (confidence {straggler.confidence}): ranks that waited for it "
                f"lost {share(straggler.caused_share)} of step time; it is late by "
                f"{milliseconds(straggler.late_ns)} ms per step: {longer(straggler)}."
            )
        )
        for straggler in stragglers.named
    ]


def _waits(asked: Asked) -> Component:
    """Waits of the ranks, the rank that caused most first."""
    document, ranks = asked.document, enumerate(asked.analysis.stragglers.ranks)
    rows = [
        [
            f"rank {rank.rank}",
            *(number(document, "stragglers", "ranks", at, key, form="duration") for key in WAITS),
        ]
        for at, rank in sorted(ranks, key=lambda pair: -pair[1].straggler_wait_ns)[:MAX_ROWS]
    ]
    return table(("rank", "compute", "its own wait", "wait it caused"), rows)


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
