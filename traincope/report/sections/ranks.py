"""Ranks: the stragglers, own work of each rank over the steps, and the shares of each rank's step."""

from collections.abc import Iterator, Mapping

from traincope.analysis import own_work
from traincope.analysis.attribution.terms import COMPUTE
from traincope.analysis.stragglers.stragglers import Stragglers, why_none
from traincope.analysis.verdict.losses.straggler_findings import longer
from traincope.report.schema import Ledger, RankLedger
from traincope.report.sections.counted_steps import sampled
from traincope.report.sections.section import (
    Alarm,
    Drawing,
    Lines,
    Number,
    On,
    Part,
    Path,
    Section,
    Table,
    Words,
    number,
    rows,
)
from traincope.report.sections.source import Source
from traincope.units import count, numbers

NAME, TITLE = "ranks", "Ranks"
NO_STEP = "No complete step was recorded, so ranks cannot be compared."
ALONE = "The run has one rank, so there are no peers to compare it with."
HEADS = ("rank", "step ms", "compute", "exposed", "bubble", "straggler wait ms", "")
MAX_ROWS = {On.CONSOLE: 16, On.SCREEN: 64}
"""If there are more ranks, those with the most straggler wait are shown; JSON has all."""
WAITS = ("compute_ns", "own_wait_ns", "straggler_wait_ns")
EXPOSED = ("exposed_transfer", "exposed_wait")


def ranks(source: Source) -> Section:
    ledger, late = source.document["ledger"], source.analysis.stragglers
    if ledger is None:
        return Section(name=NAME, title=TITLE, missing=NO_STEP)
    return Section(
        name=NAME,
        title=TITLE,
        lead=f"means per step{sampled(ledger)}",
        parts=(
            Lines((*_named(late), *_missing(source)), on=On.SCREEN),
            _work(source),
            *(part for on in MAX_ROWS for part in _table(ledger, late, on=on)),
            Table(
                caption="Waits of the ranks, sums over the counted steps",
                heads=("rank", "compute", "its own wait", "wait it caused"),
                rows=rows(_waits(late)),
                on=On.SCREEN,
            ),
        ),
    )


def _named(late: Stragglers) -> Iterator[Words]:
    if not late.named:
        yield f"No straggler: {why_none(late)}."
    for at, straggler in enumerate(late.named):
        path = ("stragglers", "named", at)
        yield (
            f"Rank {straggler.rank} is a straggler (confidence {straggler.confidence}): ranks that waited for it lost ",
            number(*path, "caused_ratio", form="share"),
            " of step time; it is late by ",
            number(*path, "late_ns", form="milliseconds"),
            f" ms per step: {longer(straggler)}.",
        )


def _missing(source: Source) -> Iterator[str]:
    if missing := source.document["run"]["missing_ranks"]:
        yield f"No records from {numbers(missing, 'rank')}. No figure includes them."


def _work(source: Source) -> Part:
    work = own_work(source.analysis.timeline, source.analysis.ledger)
    if work is None or len(work.ranks) < 2:
        return Lines((ALONE,), on=On.SCREEN)
    caption = f"Own work of {count(len(work.ranks), 'rank')} relative to the median of their peers, step by step"
    return Drawing(figure="heatmap", of=(work,), caption=caption, links="cell")


def _table(ledger: Ledger, late: Stragglers, *, on: On) -> Iterator[Part]:
    caused = {rank.rank: at for at, rank in enumerate(late.ranks)}

    def weight(at: int) -> tuple[int, int]:
        row = caused.get(ledger["ranks"][at]["rank"])
        return (0 if row is None else -late.ranks[row].straggler_wait_ns, at)

    total = len(ledger["ranks"])
    chosen = sorted(sorted(range(total), key=weight)[: MAX_ROWS[on]])
    if len(chosen) < total:
        yield Lines((f"{len(chosen)} of {count(total, 'rank')}, those with the most straggler wait",), on=on)
    named = [straggler.rank for straggler in late.named]
    yield Table(
        caption="Each rank's step",
        heads=HEADS,
        rows=rows(_row(at, ledger["ranks"][at], caused, named) for at in chosen),
        on=on,
    )


def _row(at: int, row: RankLedger, caused: Mapping[int, int], named: list[int]) -> Iterator[Words]:
    steps, wall = ("ledger", "ranks", at, "steps"), ("ledger", "ranks", at, "wall_ns")
    waited = caused.get(row["rank"])
    yield str(row["rank"])
    yield number(*wall, form="milliseconds", per=steps)
    for terms in _families(row):
        paths: tuple[Path, ...] = tuple(("ledger", "ranks", at, "terms", term) for term in terms)
        yield Number(paths, "share", wall)
    wait: tuple[Path, ...] = () if waited is None else (("stragglers", "ranks", waited, "straggler_wait_ns"),)
    yield Number(wait, "milliseconds", steps)
    yield Alarm("straggler") if row["rank"] in named else ""


def _waits(late: Stragglers) -> Iterator[Iterator[Words]]:
    """The ranks, the one that caused most wait first."""
    for at, rank in sorted(enumerate(late.ranks), key=lambda pair: -pair[1].straggler_wait_ns)[: MAX_ROWS[On.SCREEN]]:
        yield iter((str(rank.rank), *(number("stragglers", "ranks", at, key, form="duration") for key in WAITS)))


def _families(row: RankLedger) -> Iterator[list[str]]:
    """The terms of compute, of exposed communication, of the bubble."""
    yield [term for term in row["terms"] if term in COMPUTE]
    yield [term for term in row["terms"] if term.partition("[")[0] in EXPOSED]
    yield [term for term in row["terms"] if term.startswith("bubble.")]
