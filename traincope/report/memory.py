"""Memory in a few lines: one a measure, over all ranks."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from traincope.palette import SEVERE
from traincope.plain import plain
from traincope.report.schema import MemoryUse
from traincope.report.tables import table
from traincope.units import MISSING, size


def memory(uses: list[MemoryUse]) -> Iterator[RenderableType]:
    """The least and the most that a rank held when it last looked; JSON has every rank and phase."""
    head = Text("MEMORY", style="bold")
    yield head.append("  of a rank when last looked; growth of the one that grows fastest", style="not bold dim")
    rows = table("measure", "least", "rank", "most", "rank", "growth a step", "")
    for measure in dict.fromkeys(use["measure"] for use in uses):
        own = [use for use in uses if use["measure"] == measure]
        leak = any(use["leak"] for use in own)
        rows.add_row(f"    {plain(measure)}", *_cells(own), "grows" if leak else "", style=SEVERE if leak else "")
    yield rows


def _cells(own: list[MemoryUse]) -> Iterator[str]:
    for use in (min(own, key=_held), max(own, key=_held)):
        yield size(use["last_bytes"])
        yield str(use["rank"])
    known = [growth for use in own if (growth := use["growth_bytes_per_step"]) is not None]
    yield MISSING if not known else _signed(max(known))


def _held(use: MemoryUse) -> int:
    return use["last_bytes"]


def _signed(growth: float) -> str:
    return f"-{size(-growth)}" if growth < 0 else size(growth)
