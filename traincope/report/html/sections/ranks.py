"""Rank by rank: whose own work is long, since when, and for whom the others waited."""

from collections.abc import Iterator, Mapping

from traincope.analysis import own_work
from traincope.analysis.terms import COMPUTE
from traincope.figures.heatmap import rank_heatmap
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, table
from traincope.report.html.source import Path, Source
from traincope.report.schema import Ledger, RankLedger, Stragglers
from traincope.units import count

TITLE = "Ranks"
HEADS = ("rank", "step ms", "compute", "exposed", "bubble", "others waited ms", "")
MOST_ROWS = 64
CAUSED = ("stragglers", "ranks")
FAMILIES = ("exposed_transfer", "exposed_wait")


def ranks(source: Source) -> Section:
    found, late = source.document["ledger"], source.document["stragglers"]
    if found is None or late is None:
        return Section(name="ranks", title=TITLE, missing="Unknown: no complete step was recorded.")
    caused = {rank["rank"]: at for at, rank in enumerate(late["ranks"])}
    chosen = _chosen(found, late, caused)
    shown = "" if len(chosen) == len(found["ranks"]) else f"{len(chosen)} of {len(found['ranks'])} in the table; "
    return Section(
        name="ranks",
        title=TITLE,
        lead=f"{shown}means of a step",
        body=(
            *_named(source, late),
            *_heatmap(source),
            table("Each rank's step", HEADS, [_row(source, at, found, caused, late) for at in chosen]),
        ),
    )


def _chosen(found: Ledger, late: Stragglers, caused: Mapping[int, int]) -> list[int]:
    """Positions of those the others waited for most, in order."""

    def weight(at: int) -> tuple[int, int]:
        row = caused.get(found["ranks"][at]["rank"])
        return (0 if row is None else -late["ranks"][row]["caused_wait_ns"], at)

    return sorted(sorted(range(len(found["ranks"])), key=weight)[:MOST_ROWS])


def _named(source: Source, late: Stragglers) -> Iterator[Html]:
    if not late["named"]:
        yield tag("p", "No single rank is to blame for the others' waiting.")
    for at, one in enumerate(late["named"]):
        cost = source.number("stragglers", "named", at, "caused_ratio", form="share")
        excess = source.number("stragglers", "named", at, "excess_ratio", form="share")
        yield tag(
            "p",
            tag("strong", f"Rank {one['rank']} is slow"),
            " (confidence ",
            one["confidence"],
            "): who waited for it lost ",
            cost,
            " of a step; its own work takes ",
            excess,
            " longer than its peers'.",
        )


def _heatmap(source: Source) -> Iterator[Html]:
    work = own_work(source.analysis.timeline, source.analysis.ledger)
    if work is None or len(work.ranks) < 2:
        yield tag("p", "One rank has no peers to be held against.", class_="nothing")
        return
    caption = f"Own work of {count(len(work.ranks), 'rank')} over the median of the peers, step by step"
    yield plot(rank_heatmap(work), name="heatmap", caption=caption)


def _row(source: Source, at: int, found: Ledger, caused: Mapping[int, int], late: Stragglers) -> list[Html]:
    row = found["ranks"][at]
    steps, wall = ("ledger", "ranks", at, "steps"), ("ledger", "ranks", at, "wall_ns")
    waited = caused.get(row["rank"])
    slow = row["rank"] in [one["rank"] for one in late["named"]]
    return [
        joined(str(row["rank"])),
        source.number(*wall, form="milliseconds", per=steps),
        *(source.total(paths, form="share", per=wall) for paths in _parts(at, row)),
        source.total([] if waited is None else [(*CAUSED, waited, "caused_wait_ns")], form="milliseconds", per=steps),
        tag("strong", "slowest", class_="severe") if slow else joined(),
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
