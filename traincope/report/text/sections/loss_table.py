"""LOSSES BY CAUSE: the finer losses, the largest first. Shown if a price is known or the job took hours."""

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.text import Text

from traincope.analysis import LossKind, Scope
from traincope.lines import table, text
from traincope.report.schema import Cost, Loss
from traincope.units import count, money, rank_hours

MAX_ROWS = 12
"""JSON has all losses."""
HEADS = ("cause", "in", "rank-hours")
WORDS: Mapping[str, str] = {
    LossKind.KERNEL_INEFFICIENCY: "kernel inefficiency",
    LossKind.REDUNDANT_COMPUTE: "redundant compute, at peak",
    LossKind.EXPERT_PADDING: "padding of experts, at peak",
    LossKind.OVERLAP_SLOWDOWN: "kernels slowed by communication",
    LossKind.CONTENTION: "contention",
    LossKind.MESSAGE_IMBALANCE: "message imbalance",
    LossKind.HOT_EXPERT: "hot experts",
    LossKind.STRAGGLER_WAIT: "straggler wait caused by",
    LossKind.LOST_STEPS: "lost steps",
    LossKind.ROLLED_BACK_STEPS: "rolled back steps",
    LossKind.SKIPPED_STEPS: "skipped steps",
    LossKind.RESTART: "restarts",
    LossKind.CHECKPOINT_STALL: "checkpoint stalls",
    LossKind.OUTSIDE_STEPS: "outside complete steps",
}
"""Kind -> its words in the table; other kinds are printed by name."""
SCOPES: Mapping[str, str] = {Scope.STEPS: "steps", Scope.TRACES: "traced steps", Scope.JOB: "job"}


def losses(cost: Cost) -> Iterator[RenderableType]:
    """One row per cause."""
    yield Text("LOSSES BY CAUSE", style="bold").append(f"  {lead(cost)}", style="not bold dim")
    rows = table(*heads(cost))
    for _, loss in largest(cost):
        rows.add_row(text(f"    {cause(loss)}"), SCOPES[loss["scope"]], *_costs(loss, priced=cost["money"] is not None))
    yield rows


def lead(cost: Cost) -> str:
    """Words after the head: the scope of the rows and how many are left out."""
    total = sum(loss["ns"] > 0 for loss in cost["losses"])
    more = f"; the {MAX_ROWS} largest of {count(total)}" if total > MAX_ROWS else ""
    return f"over all ranks; causes overlap{more}"


def heads(cost: Cost) -> tuple[str, ...]:
    return HEADS if cost["money"] is None else (*HEADS, price_head(cost))


def price_head(cost: Cost) -> str:
    """Head of a column of money: its currency."""
    return cost["currency"] or ""


def largest(cost: Cost) -> list[tuple[int, Loss]]:
    """The losses that are shown, with their positions in the document. Gains are left out."""
    return [(at, loss) for at, loss in enumerate(cost["losses"]) if loss["ns"] > 0][:MAX_ROWS]


def cause(loss: Loss) -> str:
    """The cause in words, e.g. "straggler wait caused by: rank 3"."""
    what = WORDS.get(loss["kind"], loss["kind"])
    return f"{what}: {loss['subject']}" if loss["subject"] else what


def _costs(loss: Loss, *, priced: bool) -> Iterator[str]:
    yield rank_hours(loss["rank_hours"])
    if priced:
        yield money(loss["money"])
