"""MEMORY: one line per measure, over all ranks."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from traincope.palette import SEVERE
from traincope.printable import printable
from traincope.report.schema import MemoryUse
from traincope.report.text.layout.lines import table
from traincope.units import MISSING, size


def memory(uses: list[MemoryUse]) -> Iterator[RenderableType]:
    """The smallest and the largest last sample of a rank. JSON has every rank and phase."""
    head = Text("MEMORY", style="bold")
    yield head.append("  last sample of each rank; growth of the fastest growing rank", style="not bold dim")
    rows = table("measure", "lowest", "rank", "highest", "rank", "growth per step", "")
    for measure in dict.fromkeys(use["measure"] for use in uses):
        measured = [use for use in uses if use["measure"] == measure]
        leak = any(use["leak"] for use in measured)
        rows.add_row(
            f"    {printable(measure)}", *_cells(measured), "grows" if leak else "", style=SEVERE if leak else ""
        )
    yield rows


def _cells(measured: list[MemoryUse]) -> Iterator[str]:
    for use in (min(measured, key=_held), max(measured, key=_held)):
        yield size(use["last_bytes"])
        yield str(use["rank"])
    known = [growth for use in measured if (growth := use["growth_bytes_per_step"]) is not None]
    yield MISSING if not known else _signed(max(known))


def _held(use: MemoryUse) -> int:
    return use["last_bytes"]


def _signed(growth: float) -> str:
    return f"-{size(-growth)}" if growth < 0 else size(growth)
