"""The waterfall: 100 % of step time, one bar a ledger term, in the order of the ledger."""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from traincope.analysis.unsplit import WHY, Unsplit
from traincope.palette import colour
from traincope.report.bars import bar
from traincope.report.plain import text
from traincope.report.priced import costly
from traincope.report.schema import Cost, DeviceStall, Ledger
from traincope.report.tables import indented
from traincope.units import count, duration, milliseconds, money, rank_hours, share


class Bar:
    """A bar that fills the column it is given."""

    def __init__(self, ratio: float, *, style: str) -> None:
        self.ratio = ratio
        self.style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = bar(self.ratio, width=options.max_width, ascii_only=options.ascii_only)
        yield Text(cells, style=self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(4, options.max_width)


def waterfall(ledger: Ledger) -> Iterator[RenderableType]:
    """Bars are drawn to the scale of the longest; terms that took no time are left out."""
    mean = duration(ledger["wall_ns"] / ledger["rank_steps"])
    head = Text("WHERE THE TIME WENT", style="bold")
    priced = "; rank-hours of all" if costly(ledger["cost"]) else ""
    if ledger["cost"]["price_per_gpu_hour"] is not None:
        priced += f", at {money(ledger['cost']['price_per_gpu_hour'])} an hour"
    yield head.append(f"  a step is {mean}, mean over {_source(ledger)}{priced}", style="not bold dim")
    yield _bars(ledger)
    yield indented(notes(ledger))


def _source(ledger: Ledger) -> str:
    most = max(rank["steps"] for rank in ledger["ranks"])
    return f"{count(len(ledger['ranks']), 'rank')} and {count(most, 'step')}"


def _bars(ledger: Ledger) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", min_width=24)
    table.add_column(justify="right", no_wrap=True, min_width=8)
    table.add_column(justify="right", no_wrap=True, min_width=9)
    for _ in _costs(ledger["cost"], None):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    longest = max((abs(ratio) for ratio in ledger["waterfall"].values() if ratio), default=1.0)
    for term, ratio in ledger["waterfall"].items():
        if ratio:
            per_step = (ledger["terms"][term] or 0) / ledger["rank_steps"]
            cells = Bar(ratio / longest, style=colour(term))
            costs = _costs(ledger["cost"], term)
            table.add_row(text(f"    {term}"), share(ratio), f"{milliseconds(per_step)} ms", *costs, cells)
    total = f"{milliseconds(ledger['wall_ns'] / ledger['rank_steps'])} ms"
    table.add_row("    step", share(1.0), total, *_costs(ledger["cost"], None), "", style="bold")
    return table


def _costs(cost: Cost, term: str | None) -> Iterator[str]:
    """Rank-hours of a term, or of all, where they are worth a column; and their price, where one was given."""
    if not costly(cost):
        return
    yield f"{rank_hours(cost['wall_rank_hours'] if term is None else cost['rank_hours'][term])} h"
    if cost["money"] is not None:
        yield money(cost["wall_money"] if term is None else cost["money"][term])


def on_device(stalls: list[DeviceStall], *, rank_steps: int) -> str:
    """What the GPUs measured of what the ledger cannot see: its exposed communication is the host's."""
    host = "these are the host's times, which queues work ahead of its GPUs"
    if not stalls:
        return f"{host}; a stall of their compute streams for communication was not recorded"
    each = [f"{one['axis']} {duration(one['total_ns'] / rank_steps)} ({share(one['ratio'])})" for one in stalls]
    return f"{host}; their compute streams stood still a step for communication: {', '.join(each)}"


def notes(ledger: Ledger) -> Iterator[Text]:
    """What the shares do not tell: evaluation, terms nothing here can see, transfers that may be waiting."""
    if ledger["evaluation_ns"]:
        per_rank, of_run = duration(ledger["evaluation_ns"] / len(ledger["ranks"])), share(ledger["evaluation_ratio"])
        yield text(f"evaluation: {per_rank} beside the steps ({of_run} of the run)")
    if ledger["device_stalls"] is not None:
        yield text(on_device(ledger["device_stalls"], rank_steps=ledger["rank_steps"]))
    unseen = [term for term, ns in ledger["terms"].items() if ns is None]
    if unseen:
        yield text(f"not visible here, so within unattributed: {', '.join(unseen)}", style="dim")
    for part in ledger["unsplit"]:
        per_step, why = duration(part["ns"] / ledger["rank_steps"]), WHY[Unsplit(part["reason"])]
        yield text(f"{per_step} a step of transfer on {part['axis']} may be wait: {why}", style="dim")
