"""Ranks section: own work of each rank over the steps, and the stragglers."""

from collections.abc import Iterator, Mapping

from traincope.analysis import own_work
from traincope.analysis.attribution.terms import COMPUTE
from traincope.analysis.stragglers.stragglers import Stragglers, why_none
from traincope.analysis.verdict.losses.straggler_findings import longer
from traincope.figures.ranks.heatmap import rank_heatmap
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, table
from traincope.report.html.source import Source
from traincope.report.schema import Ledger, RankLedger
from traincope.report.sections.section import Path
from traincope.report.text.sections.counted_steps import sampled
from traincope.units import count

TITLE = "Ranks"
HEADS = ("rank", "step ms", "compute", "exposed", "bubble", "wait it caused, ms", "")
MAX_ROWS = 64
CAUSED = ("stragglers", "ranks")
FAMILIES = ("exposed_transfer", "exposed_wait")


def ranks(source: Source) -> Section:
    data, late = source.document["ledger"], source.analysis.stragglers
    if data is None:
        return Section(name="ranks", title=TITLE, missing="No complete step was recorded.")
    caused = {rank.rank: at for at, rank in enumerate(late.ranks)}
    chosen = _chosen(data, late, caused)
    shown = "" if len(chosen) == len(data["ranks"]) else f"{len(chosen)} of {len(data['ranks'])} in the table; "
    return Section(
        name="ranks",
        title=TITLE,
        lead=f"{shown}mean per step{sampled(data)}",
        body=(
            *_named(source),
            *_heatmap(source),
            table("Each rank's step", HEADS, [_row(source, at, data, caused, late) for at in chosen]),
        ),
    )


def _chosen(data: Ledger, late: Stragglers, caused: Mapping[int, int]) -> list[int]:
    """Positions of the ranks that caused most wait, in order."""

    def weight(at: int) -> tuple[int, int]:
        row = caused.get(data["ranks"][at]["rank"])
        return (0 if row is None else -late.ranks[row].straggler_wait_ns, at)

    return sorted(sorted(range(len(data["ranks"])), key=weight)[:MAX_ROWS])


def _named(source: Source) -> Iterator[Html]:
    stragglers = source.analysis.stragglers
    if not stragglers.named:
        yield tag("p", f"No straggler: {why_none(stragglers)}.")
    for at, straggler in enumerate(stragglers.named):
        path = ("stragglers", "named", at)
        yield tag(
            "p",
            tag("strong", f"Rank {straggler.rank} is a straggler"),
            f" (confidence {straggler.confidence}): ranks that waited for it lost ",
            source.number(*path, "caused_ratio", form="share"),
            " of step time; it is late by ",
            source.number(*path, "late_ns", form="milliseconds"),
            f" ms per step: {longer(straggler)}.",
        )


def _heatmap(source: Source) -> Iterator[Html]:
    work = own_work(source.analysis.timeline, source.analysis.ledger)
    if work is None or len(work.ranks) < 2:
        yield tag("p", "The run has one rank, so there are no peers to compare it with.", class_="nothing")
        return
    caption = f"Own work of {count(len(work.ranks), 'rank')} relative to the median of their peers, step by step"
    yield plot(rank_heatmap(work), name="heatmap", caption=caption)


def _row(source: Source, at: int, data: Ledger, caused: Mapping[int, int], late: Stragglers) -> list[Html]:
    row = data["ranks"][at]
    steps, wall = ("ledger", "ranks", at, "steps"), ("ledger", "ranks", at, "wall_ns")
    waited = caused.get(row["rank"])
    slow = row["rank"] in [straggler.rank for straggler in late.named]
    return [
        joined(str(row["rank"])),
        source.number(*wall, form="milliseconds", per=steps),
        *(source.total(paths, form="share", per=wall) for paths in _parts(at, row)),
        source.total(
            [] if waited is None else [(*CAUSED, waited, "straggler_wait_ns")], form="milliseconds", per=steps
        ),
        tag("strong", "straggler", class_="severe") if slow else joined(),
    ]


def _parts(at: int, row: RankLedger) -> Iterator[list[Path]]:
    """Compute, exposed communication, bubble: the terms of each."""
    terms: tuple[list[str], ...] = (
        [term for term in row["terms"] if term in COMPUTE],
        [term for term in row["terms"] if term.partition("[")[0] in FAMILIES],
        [term for term in row["terms"] if term.startswith("bubble.")],
    )
    for family in terms:
        yield [("ledger", "ranks", at, "terms", term) for term in family]
