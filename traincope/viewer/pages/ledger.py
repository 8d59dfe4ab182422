"""Ledger page: the terms of step time for the job, a stage or a rank, over steps and over ranks."""

from collections.abc import Sequence

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from traincope.printable import short
from traincope.report.sections.ledger import ledger, scopes
from traincope.units import milliseconds, share
from traincope.viewer.components import absent, field, parameter, section, table
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.sections import SCOPE, rendered

WORST = 12


def render(asked: Asked) -> Sequence[Component]:
    of_steps = ledger(asked.source)
    shown = rendered(of_steps, asked)
    if of_steps.missing is not None:
        return [shown]
    return [shown, _worst(asked), *(rendered(each, asked) for each in of_steps.within)]


def _worst(asked: Asked) -> Component:
    """The steps and ranks of the chosen scope with the most of a term."""
    term, options = asked.view.text("term"), list(asked.analysis.ledger.order)
    choice = dcc.Dropdown(
        id=parameter("term"), options=options, value=term, placeholder="choose a term", className="faults"
    )
    controls = html.Div([field("term", choice)], className="controls")
    if term is None:
        return section("Steps with the most of a term", controls)
    title = short(term, max_length=60)
    if term not in options:
        why = "This bar is computed from FLOPs for the whole job. It has no steps or ranks of its own."
        return section(title, controls, absent(why))
    rows = _rows(asked, term)
    shown = table(("step and rank", "time", "share of that step"), rows) if rows else absent("No rank recorded it.")
    return section(f"Steps with the most {title}", controls, shown)


def _rows(asked: Asked, term: str) -> list[list[Component | str]]:
    known = {scope: ranks for group in scopes(asked.analysis) for scope, ranks in group.items()}
    worst = [
        (int(ns[at]), rank.rank, int(rank.numbers[at]), int(rank.wall_ns[at]))
        for rank in known.get(asked.view.text(SCOPE) or "", next(iter(known.values())))
        if (ns := rank.terms.get(term)) is not None
        for at in np.flatnonzero(rank.counted)[np.argsort(-ns[rank.counted], kind="stable")[:WORST]].tolist()
    ]
    return [
        [
            dcc.Link(f"step {step}, rank {rank}", href=asked.view.on("timeline", step=step, ranks=rank).address),
            f"{milliseconds(ns)} ms",
            share(ns / wall if wall else None),
        ]
        for ns, rank, step, wall in sorted(worst, reverse=True)[:WORST]
    ]


PAGE = Page(slug="ledger", title="Ledger", needs=Needs.ANALYSIS, render=render)
