"""Ledger page: the terms of step time for the job, a stage or a rank, over steps and over ranks."""

from collections.abc import Mapping, Sequence

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import Analysis, RankLedger, mean_step_ns, waterfall_of
from traincope.figures.efficiency.waterfall import waterfall
from traincope.figures.ranks.rank_shares import rank_shares
from traincope.figures.steps.ledger_steps import ledger_steps
from traincope.printable import short
from traincope.report.sections.losses import losses
from traincope.report.sections.pipeline import NEGATIVE_JITTER
from traincope.report.sections.terms import causes, terms
from traincope.report.text.sections.waterfall import not_visible, on_device, run_ahead
from traincope.units import duration, milliseconds, share
from traincope.viewer.components import absent, field, linked, parameter, section, table
from traincope.viewer.pages.page import Asked, Needs, Page
from traincope.viewer.sections import rendered

JOB = "job"
MAX_RANKS, WORST = 512, 12


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    if not analysis.ledger.rank_steps:
        return [absent(_why_not(asked))]
    scope, ranks = _chosen(asked, analysis)
    shares, step_ns = _shares(analysis, ranks)
    term = asked.view.text("term")
    tables, ledger = [make(asked.source) for make in (terms, causes, losses)], asked.document["ledger"]
    unseen = "" if ledger is None else not_visible(ledger, analysis.run_ahead)
    return [
        html.Div(
            [field("scope", _scopes(analysis, scope)), field("term", _terms(analysis, term))], className="controls"
        ),
        section(
            "Where the time went",
            asked.graph(waterfall(shares, step_ns=step_ns), id=linked("term")),
            note=f"mean step {duration(step_ns)}; click a bar for the steps and ranks with the most of that term",
        ),
        *_on_device(asked),
        *_worst(asked, analysis, ranks, term),
        section(
            "Step by step",
            asked.graph(ledger_steps(analysis.ledger), id=linked("step")),
            note="mean over ranks; click a bar to open that step on the timeline"
            + ("" if analysis.bubble is None else f"; below 0: {NEGATIVE_JITTER}"),
        ),
        section("Rank by rank", asked.graph(rank_shares(analysis.ledger, stages=_stages(analysis)))),
        *(rendered(each, asked) for each in tables if each.missing is None),
        html.Div([html.P(unseen)]),
    ]


def _on_device(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    if analysis.run_ahead is not None:
        return [html.P(run_ahead(analysis.run_ahead))]
    if analysis.device_stalls is None or not analysis.ledger.rank_steps:
        return []
    stalls, rank_steps = analysis.device_stalls, analysis.ledger.rank_steps
    return [html.P(on_device(stalls, rank_steps=rank_steps, reason=analysis.why_on_host))]


def _why_not(asked: Asked) -> str:
    if asked.document["run"]["imported"]:
        return "The imported kernel traces have no marks of steps. The Hardware page shows the GPUs' time."
    return "No complete step was recorded, so there is no ledger."


def _stages(analysis: Analysis) -> Mapping[int, int | None]:
    return {rank.rank: rank.stage for rank in analysis.timeline.ranks}


def _chosen(asked: Asked, analysis: Analysis) -> tuple[str, list[RankLedger]]:
    """The chosen scope (`job`, `stage 1`, `rank 3`) and its ranks."""
    scope = asked.view.text("of") or JOB
    kind, _, number = scope.partition(" ")
    stages = _stages(analysis)
    known = [
        rank
        for rank in analysis.ledger.ranks
        if rank.num_counted and (kind == JOB or number == str(stages.get(rank.rank) if kind == "stage" else rank.rank))
    ]
    return (scope, known) if known else (JOB, list(analysis.ledger.ranks))


def _scopes(analysis: Analysis, scope: str) -> Component:
    stages = sorted({stage for stage in _stages(analysis).values() if stage is not None})
    ranks = [rank.rank for rank in analysis.ledger.ranks if rank.num_counted][:MAX_RANKS]
    options = [JOB, *(f"stage {stage}" for stage in stages), *(f"rank {rank}" for rank in ranks)]
    return dcc.Dropdown(id=parameter("of"), options=options, value=scope, clearable=False, className="faults")


def _terms(analysis: Analysis, term: str | None) -> Component:
    options = list(analysis.ledger.order)
    return dcc.Dropdown(
        id=parameter("term"), options=options, value=term, placeholder="choose a term", className="faults"
    )


def _shares(analysis: Analysis, ranks: list[RankLedger]) -> tuple[Mapping[str, float | None], float]:
    """Shares of step time, down to MFU where it is known, and the mean step in ns."""
    chosen = frozenset(rank.rank for rank in ranks)
    shares = waterfall_of(analysis.timeline, analysis.ledger, analysis.utilization, ranks=chosen)
    return shares, mean_step_ns(ranks)


def _worst(asked: Asked, analysis: Analysis, ranks: list[RankLedger], term: str | None) -> list[Component]:
    """The steps and ranks with the most of a term."""
    if term is None:
        return []
    if term not in analysis.ledger.order:
        why = "This bar is computed from FLOPs for the whole job. It has no steps or ranks of its own."
        return [section(_title(term), absent(why))]
    worst = [
        (int(ns[at]), rank.rank, int(rank.numbers[at]), int(rank.wall_ns[at]))
        for rank in ranks
        if (ns := rank.terms.get(term)) is not None
        for at in np.flatnonzero(rank.counted)[np.argsort(-ns[rank.counted], kind="stable")[:WORST]].tolist()
    ]
    rows = [
        [
            dcc.Link(f"step {step}, rank {rank}", href=asked.view.on("timeline", step=step, ranks=rank).address),
            f"{milliseconds(ns)} ms",
            share(ns / wall if wall else None),
        ]
        for ns, rank, step, wall in sorted(worst, reverse=True)[:WORST]
    ]
    if not rows:
        return [section(_title(term), absent("No rank recorded this term."))]
    return [
        section(f"Steps with the most {_title(term)}", table(("step and rank", "time", "share of that step"), rows))
    ]


def _title(term: str) -> str:
    return short(term, max_length=60)


PAGE = Page(slug="ledger", title="Ledger", needs=Needs.ANALYSIS, render=render)
