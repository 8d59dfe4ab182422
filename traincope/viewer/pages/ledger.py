"""Ledger: where the time of a step went, of the job, a stage or a rank; and over the steps."""

from collections.abc import Mapping, Sequence

import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from traincope.analysis import Analysis, RankLedger, waterfall_of
from traincope.figures.ledger_steps import ledger_steps
from traincope.figures.rank_shares import rank_shares
from traincope.figures.waterfall import waterfall
from traincope.plain import short
from traincope.report.losses import PRICE, SCOPES, cause, largest, lead
from traincope.report.priced import costly
from traincope.report.schema import Document
from traincope.report.waterfall import on_device
from traincope.units import duration, milliseconds, share
from traincope.viewer.components import absent, field, linked, parameter, section, table
from traincope.viewer.numbers import number
from traincope.viewer.pages.page import Asked, Needs, Page

JOB = "job"
MOST_RANKS, WORST = 512, 12
Path = tuple[str, ...]


def render(asked: Asked) -> Sequence[Component]:
    analysis = asked.analysis
    if not analysis.ledger.rank_steps:
        return [absent(_why_not(asked))]
    of, ranks = _chosen(asked, analysis)
    shares, step_ns = _shares(analysis, ranks)
    behind = asked.view.text("term")
    return [
        html.Div([field("of", _choice(analysis, of)), field("behind", _terms(analysis, behind))], className="controls"),
        section(
            "Where a step went",
            asked.graph(waterfall(shares, step_ns=step_ns), id=linked("term")),
            note=f"a step is {duration(step_ns)}, mean; click a bar for the steps and ranks behind it",
        ),
        *_on_device(asked),
        *_behind(asked, analysis, ranks, behind),
        section(
            "Step by step",
            asked.graph(ledger_steps(analysis.ledger), id=linked("step")),
            note="click a bar to see that step on the timeline",
        ),
        section("Rank by rank", asked.graph(rank_shares(analysis.ledger, stages=_stages(analysis)))),
        section(
            "In numbers", _table(asked), note="sums over all ranks and counted steps, as `traincope report` has them"
        ),
        *_losses(asked),
    ]


def _on_device(asked: Asked) -> Sequence[Component]:
    ledger = asked.document["ledger"]
    if ledger is None or ledger["device_stalls"] is None:
        return []
    return [html.P(on_device(ledger["device_stalls"], rank_steps=ledger["rank_steps"]))]


def _why_not(asked: Asked) -> str:
    if asked.document["run"]["imported"]:
        return "The run was made of kernel traces alone: nothing is known of steps. See Hardware for what the GPUs did."
    return "No complete step was recorded, so that nothing can be said of where one went."


def _stages(analysis: Analysis) -> Mapping[int, int | None]:
    return {rank.rank: rank.stage for rank in analysis.timeline.ranks}


def _chosen(asked: Asked, analysis: Analysis) -> tuple[str, list[RankLedger]]:
    """The choice, and the ranks it means: `job`, `stage 1`, `rank 3`."""
    of = asked.view.text("of") or JOB
    kind, _, number = of.partition(" ")
    stages = _stages(analysis)
    known = [
        rank
        for rank in analysis.ledger.ranks
        if rank.num_counted and (kind == JOB or number == str(stages.get(rank.rank) if kind == "stage" else rank.rank))
    ]
    return (of, known) if known else (JOB, list(analysis.ledger.ranks))


def _choice(analysis: Analysis, of: str) -> Component:
    stages = sorted({stage for stage in _stages(analysis).values() if stage is not None})
    ranks = [rank.rank for rank in analysis.ledger.ranks if rank.num_counted][:MOST_RANKS]
    options = [JOB, *(f"stage {stage}" for stage in stages), *(f"rank {rank}" for rank in ranks)]
    return dcc.Dropdown(id=parameter("of"), options=options, value=of, clearable=False, className="faults")


def _terms(analysis: Analysis, behind: str | None) -> Component:
    options = [{"label": term.replace("_", " "), "value": term} for term in analysis.ledger.order]
    return dcc.Dropdown(id=parameter("term"), options=options, value=behind, placeholder="a bar", className="faults")


def _shares(analysis: Analysis, ranks: list[RankLedger]) -> tuple[Mapping[str, float | None], float]:
    """Of step time, down to MFU where that is known, and the mean step."""
    chosen = frozenset(rank.rank for rank in ranks)
    shares = waterfall_of(analysis.timeline, analysis.ledger, analysis.utilization, ranks=chosen)
    return shares, sum(rank.total_wall_ns for rank in ranks) / sum(rank.num_counted for rank in ranks)


def _behind(asked: Asked, analysis: Analysis, ranks: list[RankLedger], behind: str | None) -> list[Component]:
    """The steps and ranks in which a term took most."""
    if behind is None:
        return []
    if behind not in analysis.ledger.order:
        beside = "It is what remains beside the terms of the ledger; no step or rank is behind it."
        return [section(_title(behind), absent(beside))]
    found = [
        (int(ns[at]), rank.rank, int(rank.numbers[at]), int(rank.wall_ns[at]))
        for rank in ranks
        if (ns := rank.terms.get(behind)) is not None
        for at in np.flatnonzero(rank.counted)[np.argsort(-ns[rank.counted], kind="stable")[:WORST]].tolist()
    ]
    rows = [
        [
            dcc.Link(f"step {step}, rank {rank}", href=asked.view.on("timeline", step=step, ranks=rank).address),
            f"{milliseconds(ns)} ms",
            share(ns / wall if wall else None),
        ]
        for ns, rank, step, wall in sorted(found, reverse=True)[:WORST]
    ]
    if not rows:
        return [section(_title(behind), absent("No rank can see it here."))]
    return [section(f"Most {_title(behind)}", table(("where", "took", "of that step"), rows))]


def _title(term: str) -> str:
    return short(term.replace("_", " "), most=60)


def _table(asked: Asked) -> Component:
    document = asked.document
    ledger = document["ledger"]
    terms = [] if ledger is None else [term for term, ns in ledger["terms"].items() if ns]
    rows = [
        [
            term.replace("_", " "),
            number(document, "ledger", "waterfall", term, form="share"),
            number(document, "ledger", "terms", term, form="duration"),
            *_costs(document, term),
        ]
        for term in terms
    ]
    rows.append(["all steps", "100.0 %", number(document, "ledger", "wall_ns", form="duration"), *_costs(document)])
    return table(("term", "share", "all ranks, all steps", *_cost_heads(document)), rows)


def _cost_heads(document: Document) -> tuple[str, ...]:
    """What time cost, where that is worth a column."""
    cost = document["ledger"]["cost"] if document["ledger"] else None
    if cost is None or not costly(cost):
        return ()
    return ("rank-hours",) if cost["money"] is None else ("rank-hours", PRICE)


def _costs(document: Document, term: str | None = None) -> list[Component]:
    """Of a term, or of all."""
    hours: Path = ("wall_rank_hours",) if term is None else ("rank_hours", term)
    price: Path = ("wall_money",) if term is None else ("money", term)
    cells = (
        number(document, "ledger", "cost", *hours, form="hours"),
        number(document, "ledger", "cost", *price, form="money"),
    )
    return list(cells[: len(_cost_heads(document))])


def _losses(asked: Asked) -> list[Component]:
    """By cause; the cheapest runs have none."""
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
            *([number(document, "ledger", "cost", "losses", at, "money", form="money")] if PRICE in heads else []),
        ]
        for at, loss in largest(cost)
    ]
    return [section("Losses by cause", table(("cause", "in", *heads), rows, numbers_from=2), note=lead(cost))]


PAGE = Page(slug="ledger", title="Ledger", needs=Needs.ANALYSIS, render=render)
