"""Where the time went: from peak to MFU, over the steps, and rank by rank."""

from collections.abc import Iterator

from traincope.analysis import Analysis, waterfall_of
from traincope.figures.ledger_steps import ledger_steps
from traincope.figures.rank_shares import rank_shares
from traincope.figures.waterfall import waterfall
from traincope.figures.written import Figure
from traincope.palette import colour
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import choice, plot
from traincope.report.html.section import Section, notes, swatch, table
from traincope.report.html.source import Path, Source
from traincope.report.losses import SCOPES, cause, heads, largest, lead
from traincope.report.priced import costly
from traincope.report.schema import Cost, Ledger, Loss
from traincope.report.utilization import evidence
from traincope.report.waterfall import notes as ledger_notes
from traincope.units import count, duration, share

MISSING = "Unknown: no complete step was recorded."
PER_STEP = ("ledger", "rank_steps")
MOST_RANKS = 64
"""Ranks whose waterfalls can be picked one by one; the others are in the table of ranks."""
IMPORTED = "Unknown: kernel traces alone say nothing of steps."


def ledger(source: Source) -> Section:
    document = source.document
    found = document["ledger"]
    if found is None:
        return Section(
            name="ledger",
            title="Where the time went",
            missing=IMPORTED if document["run"]["imported"] else MISSING,
        )
    most = max(rank["steps"] for rank in found["ranks"])
    mean = duration(found["wall_ns"] / found["rank_steps"])
    return Section(
        name="ledger",
        title="Where the time went",
        lead=f"a step is {mean}, mean over {count(len(found['ranks']), 'rank')} and {count(most, 'step')}",
        body=(*_figures(source), _terms(source, found), *_losses(source, found["cost"]), notes(_lines(source, found))),
    )


def _figures(source: Source) -> Iterator[Html]:
    analysis = source.analysis
    ledger = analysis.ledger
    known = analysis.utilization.reason is None
    to = "of the hardware's peak to MFU" if known else "to forward and backward: MFU is unknown"
    caption = f"From 100 % {to}; each bar is what a term takes of a step"
    yield choice(dict(_waterfalls(source.analysis)), name="waterfall", caption=caption)
    yield plot(ledger_steps(ledger), name="steps", caption="Each counted step, mean over the ranks")
    stages = {rank.rank: rank.stage for rank in analysis.timeline.ranks}
    yield plot(rank_shares(ledger, stages=stages), name="shares", caption="Each rank's steps")


def _waterfalls(analysis: Analysis) -> Iterator[tuple[str, Figure]]:
    """Of the job, of each stage, and of each rank where they are few."""
    ledger = analysis.ledger
    stages = {rank.rank: rank.stage for rank in analysis.timeline.ranks}
    ranks = [rank.rank for rank in ledger.ranks]
    chosen = {"the whole job": ranks}
    for stage in sorted({stage for stage in stages.values() if stage is not None}):
        chosen[f"stage {stage}"] = [rank for rank in ranks if stages[rank] == stage]
    if 1 < len(ranks) <= MOST_RANKS:
        chosen |= {f"rank {rank}": [rank] for rank in ranks}
    for name, members in chosen.items():
        own = [rank for rank in ledger.ranks if rank.rank in members]
        steps = sum(rank.num_counted for rank in own)
        if steps:
            shares = waterfall_of(analysis.timeline, ledger, analysis.utilization, ranks=frozenset(members))
            yield name, waterfall(shares, step_ns=sum(rank.total_wall_ns for rank in own) / steps)


def _terms(source: Source, found: Ledger) -> Html:
    """Every term that took time, and what it cost where that is worth a column."""
    cost = found["cost"]
    heads = ["term", "share of step", "ms a step"]
    heads += ["rank-hours"] if costly(cost) else []
    heads += ["price"] if cost["money"] is not None else []
    terms = [term for term, ratio in found["waterfall"].items() if ratio]
    rows = [[*_row(source, term), *_costs(source, cost, term)] for term in terms]
    return table("The ledger", heads, [*rows, [*_whole(source), *_costs(source, cost, None)]])


def _row(source: Source, term: str) -> Iterator[Html]:
    yield joined(swatch(colour(term)), term)
    yield source.number("ledger", "waterfall", term, form="share")
    yield source.number("ledger", "terms", term, form="milliseconds", per=PER_STEP)


def _whole(source: Source) -> Iterator[Html]:
    yield tag("strong", "step")
    yield source.number("ledger", "wall_ns", form="share", per=("ledger", "wall_ns"))
    yield source.number("ledger", "wall_ns", form="milliseconds", per=PER_STEP)


def _costs(source: Source, cost: Cost, term: str | None) -> Iterator[Html]:
    """Of a term, or of the whole step."""
    hours: Path = ("wall_rank_hours",) if term is None else ("rank_hours", term)
    price: Path = ("wall_money",) if term is None else ("money", term)
    if costly(cost):
        yield source.number("ledger", "cost", *hours, form="hours")
    if cost["money"] is not None:
        yield source.number("ledger", "cost", *price, form="money")


def _losses(source: Source, cost: Cost) -> Iterator[Html]:
    """By cause, as the terms where hours are worth a column."""
    if costly(cost) and largest(cost):
        yield tag("h3", "Losses by cause ", tag("span", lead(cost), class_="lead"))
        rows = [_loss(source, at, loss, priced=cost["money"] is not None) for at, loss in largest(cost)]
        yield table("Losses by cause", heads(cost), rows, words=(0, 1))


def _loss(source: Source, at: int, loss: Loss, *, priced: bool) -> list[Html]:
    own = ("ledger", "cost", "losses", at)
    price = [source.number(*own, "money", form="money")] if priced else []
    hours = source.number(*own, "rank_hours", form="hours")
    return [joined(cause(loss)), joined(SCOPES[loss["scope"]]), hours, *price]


def _lines(source: Source, found: Ledger) -> Iterator[str]:
    utilization = source.document["utilization"]
    if utilization["mfu"] is not None:
        yield f"MFU {share(utilization['mfu'])}, HFU {share(utilization['hfu'])}"
        yield from evidence(utilization)
    else:
        yield f"MFU unknown: {utilization['reason']}"
    yield from (line.plain for line in ledger_notes(found))
