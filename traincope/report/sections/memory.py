"""Memory: each measure over all ranks and over the steps, its use where most of it is in use, imported snapshots."""

from collections.abc import Iterator, Sequence

from traincope.analysis import MemoryUse, memory_samples
from traincope.analysis.memory.snapshots import RankSnapshot
from traincope.analysis.memory.split import MemorySplit
from traincope.report.sections.section import Alarm, Drawing, Lines, On, Part, Section, Table, Words, number, rows
from traincope.report.sections.source import Source
from traincope.units import count, numbers, size

NAME, TITLE = "memory", "Memory"
USES = (
    ("parameters", "parameters_bytes"),
    ("gradients", "gradients_bytes"),
    ("optimizer state", "optimizer_bytes"),
    ("communication buffers", "buffers_bytes"),
    ("activations", "activations_bytes"),
    ("unknown", "unknown_bytes"),
    ("fragmentation", "fragmentation_bytes"),
)
"""Use -> its field in a split, in the order of tables."""
GROWTH = "growth_bytes_per_step"
MAX_ROWS = 64
"""Rows of a table with one row per rank; JSON has all."""
MAX_SITES = 5
"""Sites of a snapshot that a console lists."""


def memory(source: Source) -> Section:
    uses, snapshots = source.analysis.memory, source.analysis.memory_snapshots
    if not uses and not snapshots:
        why = "No memory was recorded: the memory probe was off, or no step was completed."
        return Section(name=NAME, title=TITLE, missing=why)
    return Section(
        name=NAME,
        title=TITLE,
        lead="last samples and the fastest growth, each with its rank" if uses else "",
        parts=(
            *(_over_steps(source, uses) if uses else ()),
            *_splits([each.peak for each in source.analysis.memory_splits]),
            *(part for at, snapshot in enumerate(snapshots) for part in _snapshot(at, snapshot)),
        ),
    )


def _over_steps(source: Source, uses: Sequence[MemoryUse]) -> Iterator[Part]:
    samples = memory_samples(source.analysis.timeline)
    if samples:
        caption = "At the end of each step; line: highest rank; band: down to the lowest rank"
        yield Drawing(figure="held", of=(samples,), caption=caption)
    else:
        yield Lines(("No sample at the end of a step, so no curve is drawn.",), on=On.SCREEN)
    yield Table(
        caption="All ranks",
        heads=("measure", "lowest", "highest", "per 100 steps", "grows"),
        rows=rows(_measure(name, uses) for name in dict.fromkeys(use.measure for use in uses)),
    )
    yield Table(
        caption="Rank by rank",
        heads=("rank", "measure", "last", "peak", "per 100 steps", "grows"),
        rows=rows(_rank(at, use) for at, use in enumerate(uses[:MAX_ROWS])),
        left=frozenset({0, 1}),
        on=On.SCREEN,
    )


def _measure(measure: str, uses: Sequence[MemoryUse]) -> Iterator[Words]:
    """The ranks with the lowest and highest last sample and the fastest growth."""
    positions = [at for at, use in enumerate(uses) if use.measure == measure]
    growing = [uses[at].rank for at in positions if uses[at].leak]
    known = [at for at in positions if uses[at].growth_bytes_per_step is not None] or positions
    yield measure
    yield _of_rank(min(positions, key=lambda at: uses[at].last_bytes), "last_bytes", uses)
    yield _of_rank(max(positions, key=lambda at: uses[at].last_bytes), "last_bytes", uses)
    yield _of_rank(max(known, key=lambda at: uses[at].growth_bytes_per_step or 0.0), GROWTH, uses)
    yield Alarm(numbers(growing, "rank")) if growing else ""


def _of_rank(at: int, key: str, uses: Sequence[MemoryUse]) -> Words:
    value = number("memory", at, key, form="per_100_steps" if key == GROWTH else "size")
    return value if getattr(uses[at], key) is None else (value, f" ({uses[at].rank})")


def _rank(at: int, use: MemoryUse) -> Iterator[Words]:
    yield from (str(use.rank), use.measure)
    for key in ("last_bytes", "peak_bytes"):
        yield number("memory", at, key, form="size")
    yield number("memory", at, GROWTH, form="per_100_steps")
    yield Alarm("steadily") if use.leak else ""


def _splits(splits: Sequence[MemorySplit]) -> Iterator[Part]:
    if not splits:
        return
    keys = ("total_bytes", *(key for _, key in USES))
    yield Lines(tuple(_fullest(max(splits, key=lambda split: split.total_bytes))))
    yield Table(
        caption="Use of the memory, where most of it is in use",
        heads=("rank", "total", *(use for use, _ in USES)),
        rows=rows(
            (str(split.rank), *(number("memory_split", at, key, form="size") for key in keys))
            for at, split in enumerate(splits[:MAX_ROWS])
        ),
        on=On.SCREEN,
    )


def _fullest(split: MemorySplit) -> Iterator[str]:
    parts = [(use, getattr(split, key)) for use, key in USES]
    named = ", ".join(f"{use} {size(num_bytes)}" for use, num_bytes in parts if num_bytes)
    when = "between steps" if split.phase is None else f"after {split.phase}"
    at = "" if split.step is None else f" in step {split.step}"
    yield f"rank {split.rank} at most, {when}{at}: of {size(split.total_bytes)} {split.measure}, {named}"
    if split.reason is not None:
        yield split.reason


def _snapshot(at: int, snapshot: RankSnapshot) -> Iterator[Part]:
    held = snapshot.memory
    lines = [
        f"rank {snapshot.rank}, GPU {held.device}, {snapshot.source}: "
        f"{size(held.reserved_bytes)} in {count(held.segments, 'segment')}, "
        f"{size(held.allocated_bytes)} allocated, {size(held.awaiting_free_bytes)} awaiting free, "
        f"{size(held.inactive_bytes)} free in blocks of at most {size(held.largest_inactive_bytes)}"
    ]
    if held.peak_bytes is not None:
        lines.append(f"most in its history: {size(held.peak_bytes)} allocated")
    yield Lines(tuple(lines))
    sites = [(site, site.place or "no stack") for site in held.sites]
    yield Lines(
        tuple(
            f"{size(site.bytes)} in {count(site.blocks, 'block')}: {place}{f' ({site.part})' if site.part else ''}"
            for site, place in sites[:MAX_SITES]
        ),
        on=On.CONSOLE,
    )
    yield Table(
        caption=f"Live allocations of rank {snapshot.rank}, GPU {held.device}",
        heads=("place", "part of torch", "blocks", "allocated"),
        rows=rows(
            (
                place,
                site.part,
                count(site.blocks),
                number("memory_snapshots", at, "sites", position, "bytes", form="size"),
            )
            for position, (site, place) in enumerate(sites[:MAX_ROWS])
        ),
        left=frozenset({0, 1}),
        on=On.SCREEN,
    )
