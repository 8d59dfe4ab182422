"""What every mesh axis sent: how much, how long on the wire, how long in waiting, how much exposed."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from traincope.report.hosts import across_hosts
from traincope.report.plain import text
from traincope.report.schema import Contention, Operation, RankClock, Uneven
from traincope.report.tables import indented, table
from traincope.units import gigabytes_per_second, milliseconds, numbers, size

WORTH_A_LINE = 0.05
"""Share of an operation's transfers; JSON has every axis beside it."""


def communication(operations: list[Operation], *, rank_steps: int, clocks: list[RankClock]) -> Iterator[RenderableType]:
    """One row an axis and operation; all but the bandwidth are means of a rank's step."""
    head = Text("COMMUNICATION", style="bold")
    yield head.append("  one rank, one step; times in ms, GB/s on the bus", style="not bold dim")
    rows = table("axis, operation", "count", "bytes", "transfer", "wait", "exposed", "GB/s")
    for operation in operations:
        rows.add_row(text(f"    {operation['axis']} {operation['op']}"), *_cells(operation, rank_steps=rank_steps))
    yield rows
    apart = across_hosts(clocks)
    if apart:
        yield indented([text(f"waits and transfers{apart}", style="dim")])
    yield from notes(operations, rank_steps=rank_steps)


def notes(operations: list[Operation], *, rank_steps: int) -> Iterator[Text]:
    """Operations of which some ranks send more, or that others on the wire make longer."""
    for operation in operations:
        if operation["uneven"] is not None:
            yield _uneven(operation, operation["uneven"], rank_steps=rank_steps)
        for beside in operation["contention"]:
            if (beside["extra_ns"] or 0) >= WORTH_A_LINE * operation["transfer_ns"] > 0:
                yield _contention(operation, beside, rank_steps=rank_steps)


def _uneven(operation: Operation, uneven: Uneven, *, rank_steps: int) -> Text:
    most = f"{numbers(uneven['ranks'], 'rank')} {'sends' if len(uneven['ranks']) == 1 else 'send'}"
    excess = f"{most} {uneven['ratio']:.2f} x the mean; the excess takes {milliseconds(uneven['cost_ns'] / rank_steps)}"
    return text(f"    {operation['axis']} {operation['op']}: {excess}", style="dim")


def _contention(operation: Operation, beside: Contention, *, rank_steps: int) -> Text:
    extra = milliseconds((beside["extra_ns"] or 0) / rank_steps)
    began = f"{beside['compared']:,} of {beside['count']:,} that began beside {beside['axis']}"
    return text(f"    {operation['axis']} {operation['op']}: {began} take {extra} ms more than alone", style="dim")


def _cells(operation: Operation, *, rank_steps: int) -> Iterator[str]:
    yield f"{operation['count'] / rank_steps:.1f}"
    yield size(operation["bytes"] / rank_steps)
    for ns in (operation["transfer_ns"], operation["wait_ns"], operation["exposed_ns"]):
        yield milliseconds(ns / rank_steps)
    yield gigabytes_per_second(operation["bus_bandwidth_bytes_per_second"])
