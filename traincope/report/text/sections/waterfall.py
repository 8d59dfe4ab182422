"""WHERE THE TIME WENT: 100 % of step time, one bar per ledger term in ledger order."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from traincope.analysis import Analysis, DeviceStall, Scope
from traincope.analysis.attribution.stalls import WHY, AmbiguousWait
from traincope.analysis.attribution.terms import BUBBLE
from traincope.analysis.ledger.run_ahead import RunAhead
from traincope.lines import indented, text
from traincope.palette import colour
from traincope.report.document.costs import shows_costs
from traincope.report.schema import Cost, Ledger, TermCauses
from traincope.report.sections.counted_steps import counted_steps, mean_step_ns
from traincope.report.sections.terms import named_cause
from traincope.report.text.bars import bar
from traincope.timeline import LedgerClock
from traincope.units import count, duration, milliseconds, money, rank_hours, share


class Bar:
    """A bar as wide as its column."""

    def __init__(self, ratio: float, *, style: str) -> None:
        self.ratio = ratio
        self.style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        cells = bar(self.ratio, width=options.max_width, ascii_only=options.ascii_only)
        yield Text(cells, style=self.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(4, options.max_width)


MIN_CAUSE, MIN_OF_TERM = 0.01, 0.2
"""Smallest share of step time, and of its term, of a cause that is shown below the term."""


def waterfall(
    ledger: Ledger, *, causes: Sequence[TermCauses] = (), analysis: Analysis | None = None
) -> Iterator[RenderableType]:
    """The waterfall, scaled to the longest bar, without terms that took no time. `causes`: shown below their terms.

    `analysis`: that of the ledger, for the notes; without it, there are none.
    """
    mean = duration(mean_step_ns(ledger))
    head = Text("WHERE THE TIME WENT", style="bold")
    priced = "; rank-hours of all" if shows_costs(ledger["cost"]) else ""
    if (price := ledger["cost"]["price_per_gpu_hour"]) is not None:
        priced += f", at {money(price, ledger['cost']['currency'])} an hour"
    clock = " on the GPUs' clocks" if ledger["clock"] == LedgerClock.DEVICE else ""
    yield head.append(f"  mean step {mean} over {_source(ledger)}{clock}{priced}", style="not bold dim")
    yield bars(ledger, causes=causes)
    if analysis is not None:
        yield indented(notes(ledger, analysis))


def _source(ledger: Ledger) -> str:
    return f"{count(len(ledger['ranks']), 'rank')} and {counted_steps(ledger)}"


def bars(ledger: Ledger, *, causes: Sequence[TermCauses] = ()) -> Table:
    """One row per term that took time, and one for the step."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True, overflow="ellipsis", min_width=24)
    table.add_column(justify="right", no_wrap=True, min_width=8)
    table.add_column(justify="right", no_wrap=True, min_width=9)
    for _ in _costs(ledger["cost"], None):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1)
    longest = max((abs(ratio) for ratio in ledger["waterfall"].values() if ratio), default=1.0)
    mean_ns = mean_step_ns(ledger)
    for term, ratio in ledger["waterfall"].items():
        if ratio:
            per_step = (ledger["terms"][term] or 0) / ledger["rank_steps"]
            cells = Bar(ratio / longest, style=colour(term))
            costs = _costs(ledger["cost"], term)
            table.add_row(text(f"    {term}"), share(ratio), f"{milliseconds(per_step)} ms", *costs, cells)
        for each in (each for each in causes if each["terms"][-1] == term and each["scope"] == Scope.STEPS):
            for name, of_step in shown_causes(ledger, each):
                table.add_row(
                    text(f"      {name}"),
                    share(of_step),
                    f"{milliseconds(of_step * mean_ns)} ms",
                    style="dim",
                )
    total = f"{milliseconds(mean_ns)} ms"
    table.add_row("    step", share(1.0), total, *_costs(ledger["cost"], None), "", style="bold")
    return table


def shown_causes(ledger: Ledger, of: TermCauses) -> Iterator[tuple[str, float]]:
    """The name and the share of step time of the causes that matter to a term."""
    terms = sum(ledger["waterfall"].get(term) or 0.0 for term in of["terms"])
    if of["terms"][-1] in BUBBLE:
        return  # the table of the pipeline has its stages
    both = " (of both)" if len(of["terms"]) == 2 else ""
    for cause in of["causes"]:
        ratio = cause["ratio"] or 0.0
        if ratio >= MIN_OF_TERM and terms * ratio >= MIN_CAUSE:
            yield named_cause(cause) + both, terms * ratio


def _costs(cost: Cost, term: str | None) -> Iterator[str]:
    """Rank-hours and price of a term, or of the step if `term` is None; empty if costs are not shown."""
    if not shows_costs(cost):
        return
    yield f"{rank_hours(cost['wall_rank_hours'] if term is None else cost['rank_hours'][term])} h"
    if cost["money"] is not None:
        yield money(cost["wall_money"] if term is None else cost["money"][term], cost["currency"])


def on_device(stalls: Sequence[DeviceStall], *, rank_steps: int, reason: str | None) -> str:
    """Stalls that the GPUs measured. The ledger's exposed communication is measured on the host, with a `reason`."""
    host = "the terms are measured on the host, which queues work ahead of its GPUs"
    host += "" if reason is None else f", because {reason}"
    if not stalls:
        return f"{host}; no stall of the GPUs' compute streams for communication was recorded"
    each = [f"{stall.axis} {duration(stall.total_ns / rank_steps)} ({share(stall.ratio)})" for stall in stalls]
    return f"{host}; the GPUs' compute streams stalled for communication, per step: {', '.join(each)}"


def run_ahead(ahead: RunAhead) -> str:
    """How far the hosts queue work ahead, and what the terms contain because marks measured them."""
    return (
        f"measured by marks on the GPUs' streams, so idle time within a phase is part of the phase; the hosts run "
        f"{duration(ahead.median_ns)} ahead (median); after phases with {share(ahead.empty_ratio)} of step time "
        "the GPUs had nothing to do"
    )


def hidden_waits(waits: Mapping[str, int], *, rank_steps: int) -> str:
    """Waits of the host that cost nothing."""
    each = ", ".join(f"{term} {duration(ns / rank_steps)}" for term, ns in waits.items())
    return f"hidden by the GPUs' work, so in no term, per step: {each}"


def not_visible(ledger: Ledger, ahead: RunAhead | None) -> str:
    """The terms that no rank measured; empty if all were measured."""
    unseen = [term for term, ns in ledger["terms"].items() if ns is None]
    by_launches = ledger["clock"] == LedgerClock.DEVICE and "launch_gap" not in unseen
    within = "launch_gap" if by_launches else "unattributed"
    if ahead is not None:
        within = "a phase, launch_gap or unattributed"
    return f"not measured, so part of {within}: {', '.join(unseen)}" if unseen else ""


def notes(ledger: Ledger, analysis: Analysis) -> Iterator[Text]:
    """Lines below the waterfall: evaluation, stalls of GPUs, terms that are not measured, ambiguous waits."""
    if ledger["evaluation_ns"]:
        per_rank, of_run = duration(ledger["evaluation_ns"] / len(ledger["ranks"])), share(ledger["evaluation_ratio"])
        yield text(f"evaluation, outside the steps: {per_rank} per rank, {of_run} since the first step")
    if analysis.device_stalls is not None:
        yield text(on_device(analysis.device_stalls, rank_steps=ledger["rank_steps"], reason=analysis.why_on_host))
    if analysis.host_hidden_waits:
        yield text(hidden_waits(analysis.host_hidden_waits, rank_steps=ledger["rank_steps"]))
    if analysis.run_ahead is not None:
        yield text(run_ahead(analysis.run_ahead))
    if unseen := not_visible(ledger, analysis.run_ahead):
        yield text(unseen, style="dim")
    for part in ledger["ambiguous_waits"]:
        per_step, why = duration(part["ns"] / ledger["rank_steps"]), WHY[AmbiguousWait(part["reason"])]
        yield text(f"{per_step} per step of transfer on {part['axis']} may be wait: {why}", style="dim")
