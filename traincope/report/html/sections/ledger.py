"""Where the time went: from peak to MFU, over the steps, and rank by rank."""

from collections.abc import Iterator

from traincope.figures.ledger_steps import ledger_steps
from traincope.figures.rank_shares import rank_shares
from traincope.figures.waterfall import waterfall
from traincope.palette import colour
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, notes, swatch, table
from traincope.report.html.source import Source
from traincope.report.schema import Ledger
from traincope.report.utilization import evidence
from traincope.report.waterfall import notes as ledger_notes
from traincope.units import count, duration

MISSING = "Unknown: no complete step was recorded."
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
        body=(*_figures(source), _terms(source, found), notes(_lines(source, found))),
    )


def _figures(source: Source) -> Iterator[Html]:
    analysis = source.analysis
    ledger = analysis.ledger
    ratios = analysis.utilization.ratios.waterfall
    shares = {term: ledger.share(term) for term in ledger.order} if ratios is None else ratios
    to = "to forward and backward: MFU is unknown" if ratios is None else "of the hardware's peak to MFU"
    yield plot(
        waterfall(shares, step_ns=ledger.wall_ns / ledger.rank_steps),
        name="waterfall",
        caption=f"From 100 % {to}; each bar is what a term takes of a step",
    )
    yield plot(ledger_steps(ledger), name="steps", caption="Each counted step, mean over the ranks")
    stages = {rank.rank: rank.stage for rank in analysis.timeline.ranks}
    yield plot(rank_shares(ledger, stages=stages), name="shares", caption="Each rank's steps")


def _terms(source: Source, found: Ledger) -> Html:
    """Every term that took time; money where a price is known."""
    priced = found["cost"]["money"] is not None
    heads = ("term", "share of step", "ms a step", "rank-hours", *(["price"] if priced else []))
    terms = [term for term, ratio in found["waterfall"].items() if ratio]
    return table("The ledger", heads, [*(_row(source, term, priced=priced) for term in terms), _whole(source, priced)])


def _row(source: Source, term: str, *, priced: bool) -> list[Html]:
    cells = [
        joined(swatch(colour(term)), term),
        source.number("ledger", "waterfall", term, form="share"),
        source.number("ledger", "terms", term, form="milliseconds", per=("ledger", "rank_steps")),
        source.number("ledger", "cost", "rank_hours", term, form="hours"),
    ]
    return [*cells, source.number("ledger", "cost", "money", term, form="money")] if priced else cells


def _whole(source: Source, priced: bool) -> list[Html]:
    cells = [
        tag("strong", "step"),
        source.number("ledger", "wall_ns", form="share", per=("ledger", "wall_ns")),
        source.number("ledger", "wall_ns", form="milliseconds", per=("ledger", "rank_steps")),
        source.number("ledger", "cost", "wall_rank_hours", form="hours"),
    ]
    return [*cells, source.number("ledger", "cost", "wall_money", form="money")] if priced else cells


def _lines(source: Source, found: Ledger) -> Iterator[str]:
    utilization = source.document["utilization"]
    if utilization["mfu"] is not None:
        yield from evidence(utilization)
    else:
        yield f"MFU unknown: {utilization['reason']}"
    yield from (line.plain for line in ledger_notes(found))
