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
from traincope.report.document.costs import shows_costs
from traincope.report.schema import Document
from traincope.report.sections.counted_steps import counted_steps
from traincope.report.sections.pipeline import NEGATIVE_JITTER
from traincope.report.text.sections.cause_table import HEADS, LEAD, NUM_WORDS, TITLE, cause_rows
from traincope.report.text.sections.loss_table import SCOPES, cause, largest, lead, price_head
from traincope.report.text.sections.waterfall import not_visible, on_device, run_ahead
from traincope.units import duration, milliseconds, share
from traincope.viewer.components import absent, field, linked, parameter, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

JOB = "job"
MAX_RANKS, WORST = 512, 12
Path = tuple[str, ...]


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    if not analysis.ledger.rank_steps:
        return [absent(_why_not(asked))]
    scope, ranks = _chosen(asked, analysis)
    shares, step_ns = _shares(analysis, ranks)
    term = asked.view.text("term")
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
        section("All terms", *_table(asked), note="sums over all ranks and steps without the warm-up"),
        *_causes(asked),
        *_losses(asked),
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


def _table(asked: Asked) -> list[Component]:
    document = asked.document
    ledger = document["ledger"]
    if ledger is None:
        return []
    rows = [
        [
            term,
            number(document, "ledger", "waterfall", term, form="share"),
            number(document, "ledger", "terms", term, form="duration"),
            *_costs(document, term),
        ]
        for term, ns in ledger["terms"].items()
        if ns
    ]
    wall = number(document, "ledger", "wall_ns", form="duration")
    rows.append([counted_steps(ledger), "100.0 %", wall, *_costs(document)])
    heads = ("term", "share of step time", "total time", *_cost_heads(document))
    return [table(heads, rows), *map(html.P, filter(None, [not_visible(ledger, asked.analysis.run_ahead)]))]


def _cost_heads(document: Document) -> tuple[str, ...]:
    """Heads of the cost columns; empty where the whole run costs little."""
    cost = document["ledger"]["cost"] if document["ledger"] else None
    if cost is None or not shows_costs(cost):
        return ()
    return ("rank-hours",) if cost["money"] is None else ("rank-hours", price_head(cost))


def _costs(document: Document, term: str | None = None) -> list[Component]:
    """Costs of a term, or of all terms."""
    hours: Path = ("wall_rank_hours",) if term is None else ("rank_hours", term)
    price: Path = ("wall_money",) if term is None else ("money", term)
    cells = (
        number(document, "ledger", "cost", *hours, form="hours"),
        number(document, "ledger", "cost", *price, form="money"),
    )
    return list(cells[: len(_cost_heads(document))])


def _causes(asked: Asked) -> list[Component]:
    """The causes within the terms, as far as they matter to their term."""
    rows = [
        [
            row.term,
            row.cause,
            row.basis,
            number(asked.document, *row.place, "ratio", form="share"),
            number(asked.document, *row.place, "ns", form="duration"),
        ]
        for row in cause_rows(asked.document)
    ]
    return [section(TITLE, table(HEADS, rows, numbers_from=NUM_WORDS), note=LEAD)] if rows else []


def _losses(asked: Asked) -> list[Component]:
    """The losses by cause; empty where the whole run costs little."""
    document = asked.document
    cost = document["ledger"]["cost"] if document["ledger"] else None
    heads = _cost_heads(document)
    if cost is None or not heads or not largest(cost):
        return []
    rows = [
        [
            cause(loss),
            SCOPES[loss["scope"]],
            number(document, "ledger", "cost", "losses", at, "rank_hours", form="hours"),
            *(number(document, "ledger", "cost", "losses", at, "money", form="money") for _ in heads[1:]),
        ]
        for at, loss in largest(cost)
    ]
    return [section("Losses by cause", table(("cause", "scope", *heads), rows, numbers_from=2), note=lead(cost))]


PAGE = Page(slug="ledger", title="Ledger", needs=Needs.ANALYSIS, render=render)
