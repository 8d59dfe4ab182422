"""Ranks: whose own work is long, since when, and who waited for whom; how far their clocks are apart."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from traincope.analysis import own_work
from traincope.figures.experts import expert_load
from traincope.figures.heatmap import rank_heatmap
from traincope.units import numbers, share
from traincope.viewer.components import absent, linked, said, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

MOST_ROWS = 64
WAITS = ("compute_ns", "own_wait_ns", "caused_wait_ns")


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    work = own_work(analysis.timeline, analysis.ledger)
    shown: list[Component] = []
    if work is None:
        shown.append(absent("No complete step was recorded, so that ranks cannot be compared."))
    elif len(work.ranks) == 1:
        shown.append(absent("The run has one rank: there is nobody to compare it with."))
    else:
        note = "own work over the median of its peers' in that step; click a cell to see that rank's step"
        shown.append(section("Rank by step", asked.graph(rank_heatmap(work), id=linked("cell")), note=note))
    missing = asked.document["run"]["missing_ranks"]
    if missing:
        shown.append(absent(f"{numbers(missing, 'rank')} left no records: nothing of them is in any picture."))
    if asked.document["stragglers"] is not None:
        shown.append(section("Stragglers", *_named(asked), _waits(asked), note="sums over the counted steps"))
    if analysis.experts is not None:
        shown.append(section("Experts", asked.graph(expert_load(analysis.experts))))
    return [*shown, section("Clocks", _clocks(asked), note="nothing finer than these bounds is told across hosts")]


def _named(asked: Asked) -> list[Component]:
    found = asked.document["stragglers"]
    named = found["named"] if found else []
    if not named:
        return [html.P("Nobody is named: no rank caused most of the waiting.")]
    return [
        html.P(
            said(
                f"rank {one['rank']} cost each that waited for it {share(one['caused_ratio'])} of its time; its own "
                f"work is {share(one['excess_ratio'])} longer than its peers' (confidence {one['confidence']})"
            )
        )
        for one in named
    ]


def _waits(asked: Asked) -> Component:
    """Those that caused most first."""
    document = asked.document
    found = document["stragglers"]
    ranks = list(enumerate(found["ranks"])) if found else []
    rows = [
        [
            f"rank {one['rank']}",
            *(number(document, "stragglers", "ranks", at, key, form="duration") for key in WAITS),
        ]
        for at, one in sorted(ranks, key=lambda pair: -pair[1]["caused_wait_ns"])[:MOST_ROWS]
    ]
    return table(("rank", "compute", "waited itself", "others waited for it"), rows)


def _clocks(asked: Asked) -> Component:
    document = asked.document
    if not document["clock"]:
        return absent("No rank left records, so that nothing is known of clocks.")
    rows = [
        [
            f"rank {clock['rank']}",
            clock["source"],
            number(document, "clock", at, "bound_ns", form="duration"),
            number(document, "clock", at, "drift_ppm", form="ppm"),
        ]
        for at, clock in enumerate(document["clock"][:MOST_ROWS])
    ]
    more = len(document["clock"]) - MOST_ROWS
    return html.Div(
        [
            table(("rank", "known by", "within", "slow by, ppm"), rows, numbers_from=2),
            *([html.P(f"and {more} more")] if more > 0 else []),
        ]
    )


PAGE = Page(slug="ranks", title="Ranks", needs=Needs.ANALYSIS, render=render)
