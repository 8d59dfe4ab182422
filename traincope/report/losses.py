"""Losses by cause, where their rank-hours are worth a look: the largest first, whatever they are parts of."""

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis import LossKind, Scope
from traincope.report.plain import text
from traincope.report.priced import costly
from traincope.report.schema import Cost, Finding, Loss
from traincope.report.tables import table
from traincope.units import count, money, rank_hours, share

MOST_ROWS = 12
"""JSON has all."""
HEADS = ("cause", "in", "rank-hours")
PRICE = "price"
WORDS: Mapping[str, str] = {
    LossKind.KERNEL_INEFFICIENCY: "kernels below peak",
    LossKind.REDUNDANT: "redundant FLOPs, at peak",
    LossKind.EXPERT_PADDING: "padding of experts, at peak",
    LossKind.OVERLAP_SLOWDOWN: "kernels slowed by communication",
    LossKind.CONTENTION: "contention",
    LossKind.UNEVEN_MESSAGES: "uneven messages",
    LossKind.HOT_EXPERT: "hot experts",
    LossKind.CAUSED_WAIT: "others waited for",
    LossKind.LOST_STEPS: "steps that were lost",
    LossKind.RESTART: "restarts",
    LossKind.CHECKPOINT_STALL: "checkpoint stalls",
    LossKind.OUTSIDE_STEPS: "outside of complete steps",
}
"""Kind -> what it is called; others have their own name."""
SCOPES: Mapping[str, str] = {Scope.STEPS: "steps", Scope.TRACES: "traced steps", Scope.JOB: "job"}


def losses(cost: Cost) -> Iterator[RenderableType]:
    """One row a cause."""
    yield Text("LOSSES BY CAUSE", style="bold").append(f"  {lead(cost)}", style="not bold dim")
    rows = table(*heads(cost))
    for _, loss in largest(cost):
        rows.add_row(text(f"    {cause(loss)}"), SCOPES[loss["scope"]], *_costs(loss, priced=cost["money"] is not None))
    yield rows


def lead(cost: Cost) -> str:
    """What is to be known of the rows."""
    total = sum(loss["ns"] > 0 for loss in cost["losses"])
    more = f"; the {MOST_ROWS} largest of {count(total)}" if total > MOST_ROWS else ""
    return f"of all ranks; they may overlap{more}"


def heads(cost: Cost) -> tuple[str, ...]:
    return HEADS if cost["money"] is None else (*HEADS, PRICE)


def largest(cost: Cost) -> list[tuple[int, Loss]]:
    """Those that are shown, with their places; gains are none."""
    return [(at, loss) for at, loss in enumerate(cost["losses"]) if loss["ns"] > 0][:MOST_ROWS]


def cause(loss: Loss) -> str:
    """E.g. "others waited for: rank 3"."""
    what = WORDS.get(loss["kind"], loss["kind"])
    return f"{what}: {loss['of']}" if loss["of"] else what


def _costs(loss: Loss, *, priced: bool) -> Iterator[str]:
    yield rank_hours(loss["rank_hours"])
    if priced:
        yield money(loss["money"])


def saves(finding: Finding, cost: Cost | None) -> str:
    """E.g. "saves 8.9 %", and where that is worth a word "saves 8.9 % (1.2 rank-hours, 3.00)"; there is a gain."""
    gain = f"saves {share(finding['estimated_gain_ratio'])}"
    if cost is None or not costly(cost):
        return gain
    price = finding["estimated_gain_money"]
    told = f"{rank_hours(finding['estimated_gain_rank_hours'])} rank-hours"
    return f"{gain} ({told})" if price is None else f"{gain} ({told}, {money(price)})"
