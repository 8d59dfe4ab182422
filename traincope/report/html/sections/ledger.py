"""Ledger section: step time from peak to MFU, over the steps, and by rank."""

from collections.abc import Iterator

from traincope.analysis import Analysis, waterfall_of
from traincope.analysis import mean_step_ns as mean_of
from traincope.figures.drawing.serialization import Figure
from traincope.figures.efficiency.waterfall import waterfall
from traincope.figures.ranks.rank_shares import rank_shares
from traincope.figures.steps.ledger_steps import ledger_steps
from traincope.report.html.markup import Html, tag
from traincope.report.html.plots import choice, plot
from traincope.report.html.section import Section, notes, on_page
from traincope.report.html.source import Source
from traincope.report.schema import Ledger
from traincope.report.sections import section as data
from traincope.report.sections.counted_steps import counted_steps, mean_step_ns
from traincope.report.sections.losses import losses
from traincope.report.sections.terms import causes, terms
from traincope.report.text.sections.utilization import evidence
from traincope.report.text.sections.waterfall import notes as ledger_notes
from traincope.units import count, duration, share

MAX_RANKS = 64
"""Runs of at most so many ranks offer a waterfall for each rank."""


def ledger(source: Source) -> Section:
    document = source.document
    ledger_json = document["ledger"]
    if ledger_json is None:
        return Section(
            name="ledger",
            title="Where the time went",
            missing=terms(source).missing,
        )
    return Section(
        name="ledger",
        title="Where the time went",
        lead=f"mean step {duration(mean_step_ns(ledger_json))}, over {count(len(ledger_json['ranks']), 'rank')} and "
        f"{counted_steps(ledger_json)}",
        body=(
            *_figures(source),
            *_inside(source, terms(source), causes(source), losses(source)),
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


def _inside(source: Source, *sections: data.Section) -> Iterator[Html]:
    """Sections of data as parts of this one; empty ones are left out."""
    for each in sections:
        if each.missing is None:
            shown = on_page(each, source.document)
            yield tag("h3", f"{shown.title} ", tag("span", shown.lead, class_="lead"))
            yield from shown.body


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
