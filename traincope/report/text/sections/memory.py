"""MEMORY: one line per measure, over all ranks; what the fullest rank uses it for; imported snapshots."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis import Analysis, MemoryUse
from traincope.analysis.memory.snapshots import RankSnapshot
from traincope.analysis.memory.split import MemorySplit
from traincope.lines import indented, table
from traincope.palette import SEVERE
from traincope.printable import printable
from traincope.units import MISSING, count, numbers, size

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
STEPS = 100
"""Number of steps for which growth is given."""
MAX_SITES = 5


def memory(analysis: Analysis) -> Iterator[RenderableType]:
    """The smallest and the largest last sample of a rank. JSON has every rank and phase."""
    head = Text("MEMORY", style="bold")
    splits = [each.peak for each in analysis.memory_splits]
    if analysis.memory:
        yield head.append("  last samples, and the fastest growth, each with its rank", style="not bold dim")
        yield _measures(analysis.memory)
    else:
        yield head
    if splits:
        yield _split(max(splits, key=lambda split: split.total_bytes))
    for snapshot in analysis.memory_snapshots:
        yield _snapshot(snapshot)


def _measures(uses: Sequence[MemoryUse]) -> RenderableType:
    rows = table("measure", "lowest", "highest", f"per {STEPS} steps", "grows")
    for measure in dict.fromkeys(use.measure for use in uses):
        measured = [use for use in uses if use.measure == measure]
        growing = [use.rank for use in measured if use.leak]
        rows.add_row(
            f"    {printable(measure)}",
            *_cells(measured),
            numbers(growing, "rank") if growing else "",
            style=SEVERE if growing else "",
        )
    return rows


def _cells(measured: Sequence[MemoryUse]) -> Iterator[str]:
    for use in (min(measured, key=_held), max(measured, key=_held)):
        yield f"{size(use.last_bytes)} ({use.rank})"
    known = [(growth, use.rank) for use in measured if (growth := use.growth_bytes_per_step) is not None]
    growth, rank = max(known, default=(None, None))
    yield MISSING if growth is None else f"{_signed(STEPS * growth)} ({rank})"


def _held(use: MemoryUse) -> int:
    return use.last_bytes


def _signed(growth: float) -> str:
    return f"-{size(-growth)}" if growth < 0 else size(growth)


def _split(split: MemorySplit) -> RenderableType:
    parts = [(use, getattr(split, key)) for use, key in USES]
    named = ", ".join(f"{use} {size(num_bytes)}" for use, num_bytes in parts if num_bytes)
    when = "between steps" if split.phase is None else f"after {split.phase}"
    at = "" if split.step is None else f" in step {split.step}"
    lines = [f"rank {split.rank} at most, {when}{at}: of {size(split.total_bytes)} {split.measure}, {named}"]
    if split.reason is not None:
        lines.append(split.reason)
    return indented(map(Text, lines))


def _snapshot(snapshot: RankSnapshot) -> RenderableType:
    held = snapshot.memory
    lines = [
        f"rank {snapshot.rank}, GPU {held.device}, {printable(snapshot.source)}: "
        f"{size(held.reserved_bytes)} in {count(held.segments, 'segment')}, "
        f"{size(held.allocated_bytes)} allocated, {size(held.awaiting_free_bytes)} awaiting free, "
        f"{size(held.inactive_bytes)} free in blocks of at most {size(held.largest_inactive_bytes)}"
    ]
    if held.peak_bytes is not None:
        lines.append(f"most in its history: {size(held.peak_bytes)} allocated")
    for site in held.sites[:MAX_SITES]:
        part = f" ({site.part})" if site.part else ""
        place = printable(site.place) or "no stack"
        lines.append(f"{size(site.bytes)} in {count(site.blocks, 'block')}: {place}{part}")
    return indented(map(Text, lines))
