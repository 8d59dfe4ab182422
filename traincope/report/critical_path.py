"""What the end of a step waits for: one row a term, and the ranks that most of it is on."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from traincope.report.plain import text
from traincope.report.schema import CriticalPath
from traincope.report.tables import indented, table
from traincope.units import MISSING, count, duration, milliseconds, share

MOST_RANKS = 2
"""Named in a row."""
WORTH_A_ROW = 0.001
"""Share of a step from which a term has one."""


def critical_path(path: CriticalPath) -> Iterator[RenderableType]:
    """Shares of the steps' time; what takes less than a thousandth is left out."""
    head = Text("CRITICAL PATH", style="bold")
    if path["reason"] is not None:
        yield head.append_text(text(f"  unknown: {path['reason']}", style="not bold dim"))
        return
    mean = duration(path["wall_ns"] / path["steps"]) if path["steps"] else MISSING
    told = f"  what the end of a step waits for: {mean}, mean over {count(path['steps'], 'step')}"
    yield head.append_text(text(told, style="not bold dim"))
    rows = table("term", "share", "ms a step", "most on rank")
    for term, ns in path["terms"].items():
        if ns >= WORTH_A_ROW * path["wall_ns"]:
            per_step = milliseconds(ns / path["steps"])
            rows.add_row(text(f"    {term}"), share(ns / path["wall_ns"]), per_step, _ranks(path, term))
    yield rows
    yield indented(notes(path))


def _ranks(path: CriticalPath, term: str) -> str:
    """Those that most of it is on, with their shares of the steps' time."""
    there = [(rank["terms"][term], rank["rank"]) for rank in path["ranks"] if term in rank["terms"]]
    ordered = sorted(there, key=lambda one: (-one[0], one[1]))
    named = [f"{rank}: {share(ns / path['wall_ns'])}" for ns, rank in ordered[:MOST_RANKS]]
    return ", ".join(named)


def notes(path: CriticalPath) -> Iterator[Text]:
    """How far it can be trusted."""
    if path["untold_ns"] >= WORTH_A_ROW * path["wall_ns"]:
        per_step = duration(path["untold_ns"] / path["steps"])
        yield text(f"{per_step} a step of its transfers may be waiting for a rank: the records do not say", style="dim")
    if path["clock_error_ns"]:
        apart = duration(path["clock_error_ns"])
        yield text(f"where it goes from host to host, their clocks may be {apart} apart", style="dim")
