"""CRITICAL PATH: one row per term of the path, with the ranks that hold most of it."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis import CriticalPath
from traincope.lines import indented, table, text
from traincope.units import MISSING, count, duration, milliseconds, share

MAX_RANKS = 2
"""Ranks named per row."""
MIN_SHARE = 0.001
"""Share of step time below which a term has no row."""


def critical_path(path: CriticalPath) -> Iterator[RenderableType]:
    """Shares of the steps' time, without terms below MIN_SHARE."""
    head = Text("CRITICAL PATH", style="bold")
    if path.reason is not None:
        yield head.append_text(text(f"  unknown: {path.reason}", style="not bold dim"))
        return
    mean = duration(path.wall_ns / path.num_steps) if path.num_steps else MISSING
    subtitle = f"  what the end of a step waited for: mean {mean} over {count(path.num_steps, 'step')}"
    yield head.append_text(text(subtitle, style="not bold dim"))
    rows = table("term", "share", "ms per step", "most on ranks")
    for term, ns in path.terms.items():
        if ns >= MIN_SHARE * path.wall_ns:
            cells = share(ns / path.wall_ns), milliseconds(ns / path.num_steps)
            rows.add_row(text(f"    {term}"), *cells, _ranks(path, term))
    yield rows
    yield indented(notes(path))


def _ranks(path: CriticalPath, term: str) -> str:
    """The ranks with most of a term, with their shares of the steps' time."""
    rank_times = [(rank.terms[term], rank.rank) for rank in path.ranks if term in rank.terms]
    ordered = sorted(rank_times, key=lambda item: (-item[0], item[1]))
    named = [f"{rank}: {share(ns / path.wall_ns)}" for ns, rank in ordered[:MAX_RANKS]]
    return ", ".join(named)


def notes(path: CriticalPath) -> Iterator[Text]:
    """Lines on the limits of the path: ambiguous waits and the clocks' error."""
    if path.untold_ns >= MIN_SHARE * path.wall_ns:
        per_step = duration(path.untold_ns / path.num_steps)
        yield text(f"{per_step} per step of its transfers may be wait: the records cannot separate them", style="dim")
    if path.clock_error_ns:
        apart = duration(path.clock_error_ns)
        yield text(f"the clocks of the hosts may differ by {apart}", style="dim")
