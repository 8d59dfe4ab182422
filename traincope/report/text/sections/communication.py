"""COMMUNICATION: bytes, transfer, wait and exposed time of every operation on every mesh axis."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis import AxisOperation, MessageImbalance
from traincope.analysis.communication.contention import Contention
from traincope.lines import indented, table, text
from traincope.report.schema import Ledger
from traincope.report.sections.counted_steps import sampled
from traincope.report.sections.forms import across_hosts
from traincope.timeline import RankClock
from traincope.units import gigabytes_per_second, milliseconds, numbers, size

MIN_SHARE = 0.05
"""Share of an operation's transfer time above which contention is printed. JSON has every axis."""


def communication(
    operations: Sequence[AxisOperation], *, ledger: Ledger, clocks: Sequence[RankClock]
) -> Iterator[RenderableType]:
    """One row per axis and operation. All numbers but the bandwidth are means per rank and step."""
    head, rank_steps = Text("COMMUNICATION", style="bold"), ledger["rank_steps"]
    scope = f"  means per rank and step{sampled(ledger)}; times in ms, bus bandwidth in GB/s"
    yield head.append(scope, style="not bold dim")
    rows = table("axis, operation", "count", "bytes", "transfer", "wait", "exposed", "GB/s")
    for operation in operations:
        rows.add_row(text(f"    {operation.axis} {operation.operation}"), *_cells(operation, rank_steps=rank_steps))
    yield rows
    apart = across_hosts(clocks)
    if apart:
        yield indented([text(f"waits and transfers{apart}", style="dim")])
    yield from notes(operations, rank_steps=rank_steps)


def notes(operations: Sequence[AxisOperation], *, rank_steps: int) -> Iterator[Text]:
    """Lines on operations with message imbalance or contention."""
    for operation in operations:
        if operation.message_imbalance is not None:
            yield _imbalance_note(operation, operation.message_imbalance, rank_steps=rank_steps)
        for contention in operation.contention:
            if (contention.extra_ns or 0) >= MIN_SHARE * operation.transfer_ns > 0:
                yield _contention_note(operation, contention, rank_steps=rank_steps)


def _imbalance_note(operation: AxisOperation, imbalance: MessageImbalance, *, rank_steps: int) -> Text:
    senders = f"{numbers(imbalance.ranks, 'rank')} {'sends' if len(imbalance.ranks) == 1 else 'send'}"
    takes = milliseconds(imbalance.cost_ns / rank_steps)
    excess = f"{senders} {imbalance.ratio:.2f} x the mean; excess {takes} ms per step"
    return text(f"    {operation.axis} {operation.operation}: {excess}", style="dim")


def _contention_note(operation: AxisOperation, contention: Contention, *, rank_steps: int) -> Text:
    extra = milliseconds((contention.extra_ns or 0) / rank_steps)
    compared = f"{contention.compared:,} of {contention.count:,} compared"
    line = f"contention with {contention.axis} adds {extra} ms per step ({compared})"
    return text(f"    {operation.axis} {operation.operation}: {line}", style="dim")


def _cells(operation: AxisOperation, *, rank_steps: int) -> Iterator[str]:
    yield f"{operation.count / rank_steps:.1f}"
    yield size(None if operation.num_bytes is None else operation.num_bytes / rank_steps)
    for ns in (operation.transfer_ns, operation.wait_ns, operation.exposed_ns):
        yield milliseconds(None if ns is None else ns / rank_steps)
    yield gigabytes_per_second(operation.bus_bandwidth)
