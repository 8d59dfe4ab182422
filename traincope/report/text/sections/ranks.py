"""RANKS: one row per rank with the shares of its step time and its straggler wait."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis.attribution.terms import COMPUTE
from traincope.analysis.stragglers.stragglers import Stragglers
from traincope.lines import table
from traincope.palette import SEVERE
from traincope.report.schema import Ledger, RankLedger
from traincope.report.text.sections.counted_steps import sampled
from traincope.units import count, milliseconds, share

MAX_ROWS = 16
"""If there are more ranks, those with the most straggler wait are shown; JSON has all."""


def ranks(ledger: Ledger, stragglers: Stragglers) -> Iterator[RenderableType]:
    """One row per rank; the stragglers that the analysis names are marked."""
    caused = {rank.rank: rank.straggler_wait_ns for rank in stragglers.ranks}
    named = [straggler.rank for straggler in stragglers.named]
    chosen = _worst(ledger["ranks"], caused=caused)
    yield _head(shown=len(chosen), total=len(ledger["ranks"]), source=sampled(ledger))
    rows = table("rank", "step ms", "compute", "exposed", "bubble", "straggler wait ms", "")
    for rank in chosen:
        slow = rank["rank"] in named
        mark = "straggler" if slow else ""
        rows.add_row(*_cells(rank, caused=caused), mark, style=f"bold {SEVERE}" if slow else "")
    yield rows


def _worst(rows: list[RankLedger], *, caused: dict[int, int]) -> list[RankLedger]:
    def weight(row: RankLedger) -> tuple[int, int]:
        return (-caused.get(row["rank"], 0), row["rank"])

    return sorted(sorted(rows, key=weight)[:MAX_ROWS], key=lambda row: row["rank"])


def _head(*, shown: int, total: int, source: str) -> Text:
    head = Text("RANKS", style="bold")
    scope = "" if shown == total else f"{shown} of {count(total, 'rank')}, those with the most straggler wait; "
    return head.append(f"  {scope}means per step{source}", style="not bold dim")


def _cells(row: RankLedger, *, caused: dict[int, int]) -> Iterator[str]:
    wall, steps = row["wall_ns"], row["steps"]
    waited = caused.get(row["rank"])
    yield f"    {row['rank']}"
    yield milliseconds(wall / steps if steps else None)
    for part in (_sum(row, *COMPUTE), _sum(row, "exposed_transfer", "exposed_wait"), _bubble(row)):
        yield share(part / wall if wall and part is not None else None)
    yield milliseconds(waited / steps if waited is not None and steps else None)


def _sum(row: RankLedger, *families: str) -> int:
    return sum(ns or 0 for term, ns in row["terms"].items() if term.partition("[")[0] in families)


def _bubble(row: RankLedger) -> int | None:
    parts = [ns for term, ns in row["terms"].items() if term.startswith("bubble.") and ns is not None]
    return sum(parts) if parts else None
