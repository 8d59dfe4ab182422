"""Ledger section: step time from peak to MFU, over the steps, and by rank."""

from collections.abc import Iterator

from traincope.analysis import Analysis, waterfall_of
from traincope.analysis import mean_step_ns as mean_of
from traincope.figures.drawing.serialization import Figure
from traincope.figures.efficiency.waterfall import waterfall
from traincope.figures.ranks.rank_shares import rank_shares
from traincope.figures.steps.ledger_steps import ledger_steps
from traincope.palette import colour
from traincope.report.document.costs import shows_costs
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import choice, plot
from traincope.report.html.section import Section, notes, table
from traincope.report.html.source import Source
from traincope.report.html.values import swatch
from traincope.report.schema import Cost, Ledger, Loss
from traincope.report.sections.counted_steps import counted_steps, mean_step_ns
from traincope.report.sections.section import Path
from traincope.report.text.sections.cause_table import HEADS, LEAD, NUM_WORDS, TITLE, cause_rows
from traincope.report.text.sections.loss_table import SCOPES, cause, heads, largest, lead, price_head
from traincope.report.text.sections.utilization import evidence
from traincope.report.text.sections.waterfall import notes as ledger_notes
from traincope.units import count, duration, share

MISSING = "No complete step was recorded."
RANK_STEPS: Path = ("ledger", "rank_steps")
MAX_RANKS = 64
"""Runs of at most so many ranks offer a waterfall for each rank."""
IMPORTED = "The imported kernel traces have no marks of steps."


def ledger(source: Source) -> Section:
    document = source.document
    ledger_json = document["ledger"]
    if ledger_json is None:
        return Section(
            name="ledger",
            title="Where the time went",
            missing=IMPORTED if document["run"]["imported"] else MISSING,
        )
    return Section(
        name="ledger",
        title="Where the time went",
        lead=f"mean step {duration(mean_step_ns(ledger_json))}, over {count(len(ledger_json['ranks']), 'rank')} and "
        f"{counted_steps(ledger_json)}",
        body=(
            *_figures(source),
            _terms(source, ledger_json),
            *_causes(source),
            *_losses(source, ledger_json["cost"]),
            notes(_lines(source, ledger_json)),
        ),
    )


def _figures(source: Source) -> Iterator[Html]:
    analysis = source.analysis
    ledger = analysis.ledger
    known = analysis.utilization.reason is None
    to = "of the hardware's peak to MFU" if known else "to forward and backward: MFU is unknown"
    caption = f"From 100 % {to}; each bar is a term's share of step time"
    yield choice(dict(_waterfalls(source.analysis)), name="waterfall", caption=caption)
    yield plot(ledger_steps(ledger), name="steps", caption="Terms of each counted step, mean over ranks")
    stages = {rank.rank: rank.stage for rank in analysis.timeline.ranks}
    yield plot(rank_shares(ledger, stages=stages), name="shares", caption="Terms of each rank, mean over steps")


def _waterfalls(analysis: Analysis) -> Iterator[tuple[str, Figure]]:
    """Waterfalls of the job, of each stage, and of each rank where there are few."""
    ledger = analysis.ledger
    stages = {rank.rank: rank.stage for rank in analysis.timeline.ranks}
    ranks = [rank.rank for rank in ledger.ranks]
    chosen = {"the whole job": ranks}
    for stage in sorted({stage for stage in stages.values() if stage is not None}):
        chosen[f"stage {stage}"] = [rank for rank in ranks if stages[rank] == stage]
    if 1 < len(ranks) <= MAX_RANKS:
        chosen |= {f"rank {rank}": [rank] for rank in ranks}
    for name, members in chosen.items():
        scope_ranks = [rank for rank in ledger.ranks if rank.rank in members]
        if any(rank.num_counted for rank in scope_ranks):
            shares = waterfall_of(analysis.timeline, ledger, analysis.utilization, ranks=frozenset(members))
            yield name, waterfall(shares, step_ns=mean_of(scope_ranks))


def _terms(source: Source, ledger_json: Ledger) -> Html:
    """The table of all terms that took time, with cost columns for runs that cost enough."""
    cost = ledger_json["cost"]
    heads = ["term", "share of step time", "ms per step"]
    heads += ["rank-hours"] if shows_costs(cost) else []
    heads += [price_head(cost)] if cost["money"] is not None else []
    terms = [term for term, ratio in ledger_json["waterfall"].items() if ratio]
    rows = [[*_row(source, term), *_costs(source, cost, term)] for term in terms]
    return table("The ledger", heads, [*rows, [*_whole(source), *_costs(source, cost, None)]])


def _row(source: Source, term: str) -> Iterator[Html]:
    yield joined(swatch(colour(term)), term)
    yield source.number("ledger", "waterfall", term, form="share")
    yield source.number("ledger", "terms", term, form="milliseconds", per=RANK_STEPS)


def _whole(source: Source) -> Iterator[Html]:
    yield tag("strong", "step")
    yield source.number("ledger", "wall_ns", form="share", per=("ledger", "wall_ns"))
    yield source.number("ledger", "wall_ns", form="milliseconds", per=RANK_STEPS)


def _costs(source: Source, cost: Cost, term: str | None) -> Iterator[Html]:
    """Costs of a term, or of the whole step."""
    hours: Path = ("wall_rank_hours",) if term is None else ("rank_hours", term)
    price: Path = ("wall_money",) if term is None else ("money", term)
    if shows_costs(cost):
        yield source.number("ledger", "cost", *hours, form="hours")
    if cost["money"] is not None:
        yield source.number("ledger", "cost", *price, form="money")


def _causes(source: Source) -> Iterator[Html]:
    """The causes within the terms, as far as they matter to their term."""
    rows = [
        [
            joined(row.term),
            joined(row.cause),
            joined(row.basis),
            source.number(*row.place, "ratio", form="share"),
            source.number(*row.place, "ns", form="duration"),
        ]
        for row in cause_rows(source.document)
    ]
    if rows:
        yield tag("h3", f"{TITLE} ", tag("span", LEAD, class_="lead"))
        yield table(TITLE, HEADS, rows, words=range(NUM_WORDS))


def _losses(source: Source, cost: Cost) -> Iterator[Html]:
    """The losses by cause, for runs that cost enough."""
    if shows_costs(cost) and largest(cost):
        yield tag("h3", "Losses by cause ", tag("span", lead(cost), class_="lead"))
        rows = [_loss(source, at, loss, priced=cost["money"] is not None) for at, loss in largest(cost)]
        yield table("Losses by cause", heads(cost), rows, words=(0, 1))


def _loss(source: Source, at: int, loss: Loss, *, priced: bool) -> list[Html]:
    scope_ranks = ("ledger", "cost", "losses", at)
    price = [source.number(*scope_ranks, "money", form="money")] if priced else []
    hours = source.number(*scope_ranks, "rank_hours", form="hours")
    return [joined(cause(loss)), joined(SCOPES[loss["scope"]]), hours, *price]


def _lines(source: Source, ledger_json: Ledger) -> Iterator[str]:
    used = source.analysis.utilization
    if used.ratios.mfu is not None:
        yield f"MFU {share(used.ratios.mfu)}, HFU {share(used.ratios.hfu)}"
    else:
        yield f"MFU unknown: {used.reason}"
        if used.ratios.hfu is not None:
            yield f"HFU {share(used.ratios.hfu)}: all FLOPs of the recorded shapes"
    yield from evidence(used)
    yield from (line.plain for line in ledger_notes(ledger_json, source.analysis))
