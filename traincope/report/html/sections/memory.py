"""Memory section: memory over the steps, the lowest and highest ranks, its use, and imported snapshots."""

from collections.abc import Iterator, Sequence

from traincope.analysis import MemoryUse, memory_samples
from traincope.analysis.memory.split import MemorySplit
from traincope.figures.steps.memory import memory_over_steps
from traincope.report.html.markup import Html, joined, tag
from traincope.report.html.plots import plot
from traincope.report.html.section import Section, table
from traincope.report.html.source import Source
from traincope.report.text.sections.memory import USES

TITLE = "Memory"
HEADS = ("measure", "lowest", "rank", "highest", "rank", "peak", "rank", "growth per step", "rank", "")
SPLIT_HEADS = ("rank", "total", *(use for use, _ in USES))
SITE_HEADS = ("rank", "GPU", "allocated", "blocks", "part of torch", "place")
MAX_ROWS = 64


def memory(source: Source) -> Section:
    uses, snapshots = source.analysis.memory, source.analysis.memory_snapshots
    if not uses and not snapshots:
        return Section(name="memory", title=TITLE, missing="No memory was recorded.")
    return Section(name="memory", title=TITLE, lead="per rank", body=tuple(_body(source, uses)))


def _body(source: Source, uses: Sequence[MemoryUse]) -> Iterator[Html]:
    if uses:
        yield from _figure(source)
        measures = dict.fromkeys(use.measure for use in uses)
        yield table("Memory at the last sample", HEADS, [_row(source, name, uses) for name in measures])
    splits = [each.peak for each in source.analysis.memory_splits]
    if splits:
        parts = [_split_row(source, at, split) for at, split in enumerate(splits[:MAX_ROWS])]
        yield table("Use of the memory, where most of it is in use", SPLIT_HEADS, parts)
        for reason in dict.fromkeys(split.reason for split in splits if split.reason is not None):
            yield tag("p", reason, class_="nothing")
    sites = [row for at in range(len(source.analysis.memory_snapshots)) for row in _site_rows(source, at)]
    if sites:
        yield table("Live allocations in imported snapshots", SITE_HEADS, sites[:MAX_ROWS])


def _split_row(source: Source, at: int, split: MemorySplit) -> list[Html]:
    keys = ("total_bytes", *(key for _, key in USES))
    return [joined(str(split.rank)), *(source.number("memory_split", at, key, form="size") for key in keys)]


def _site_rows(source: Source, at: int) -> Iterator[list[Html]]:
    snapshot = source.analysis.memory_snapshots[at]
    for number, site in enumerate(snapshot.memory.sites):
        yield [
            joined(str(snapshot.rank)),
            joined(str(snapshot.memory.device)),
            source.number("memory_snapshots", at, "sites", number, "bytes", form="size"),
            joined(str(site.blocks)),
            joined(site.part),
            joined(site.place or "no stack"),
        ]


def _figure(source: Source) -> Iterator[Html]:
    samples = memory_samples(source.analysis.timeline)
    if not samples:
        yield tag("p", "No sample at the end of a step, so no curve is drawn.", class_="nothing")
        return
    caption = "At the end of each step; line: highest rank; band: down to the lowest rank"
    yield plot(memory_over_steps(samples), name="held", caption=caption)


def _row(source: Source, measure: str, uses: Sequence[MemoryUse]) -> list[Html]:
    positions = [at for at, use in enumerate(uses) if use.measure == measure]
    lowest, highest = (choose(positions, key=lambda at: uses[at].last_bytes) for choose in (min, max))
    peak = max(positions, key=lambda at: uses[at].peak_bytes)
    fastest = max(positions, key=lambda at: uses[at].growth_bytes_per_step or float("-inf"))
    leaks = any(uses[at].leak for at in positions)
    return [
        joined(measure),
        source.number("memory", lowest, "last_bytes", form="size"),
        joined(str(uses[lowest].rank)),
        source.number("memory", highest, "last_bytes", form="size"),
        joined(str(uses[highest].rank)),
        source.number("memory", peak, "peak_bytes", form="size"),
        joined(str(uses[peak].rank)),
        source.number("memory", fastest, "growth_bytes_per_step", form="growth"),
        joined(str(uses[fastest].rank) if uses[fastest].growth_bytes_per_step is not None else ""),
        tag("strong", "grows", class_="severe") if leaks else joined(),
    ]
