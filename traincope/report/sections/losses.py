"""Losses by cause: the finer losses, the largest first. For runs with a price or of at least an hour."""

from collections.abc import Iterator, Mapping

from traincope.analysis import LossKind, Scope
from traincope.report.document.costs import shows_costs
from traincope.report.schema import Cost, Loss
from traincope.report.sections.section import Section, Table, Words, number, rows
from traincope.report.sections.source import Source
from traincope.units import count

NAME, TITLE = "losses", "Losses by cause"
CHEAP = "Losses are not listed: the run took less than an hour of a rank, and has no price."
NOTHING = "No loss by cause is known."
MAX_ROWS = 12
"""JSON has all losses."""
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


def losses(source: Source) -> Section:
    ledger = source.document["ledger"]
    if ledger is None or not shows_costs(ledger["cost"]):
        return Section(name=NAME, title=TITLE, missing=CHEAP)
    cost = ledger["cost"]
    lost = [(at, loss) for at, loss in enumerate(cost["losses"]) if loss["ns"] > 0]  # the others are gains
    if not lost:
        return Section(name=NAME, title=TITLE, missing=NOTHING)
    more = f"; the {MAX_ROWS} largest of {count(len(lost))}" if len(lost) > MAX_ROWS else ""
    table = Table(
        caption=TITLE,
        heads=("cause", "in", *cost_heads(cost)),
        rows=rows(_loss(at, loss, cost) for at, loss in lost[:MAX_ROWS]),
        left=frozenset({0}),
    )
    return Section(name=NAME, title=TITLE, lead=f"over all ranks; causes overlap{more}", parts=(table,))


def cost_heads(cost: Cost) -> tuple[str, ...]:
    """Heads of the columns of costs."""
    return ("rank-hours",) if cost["money"] is None else ("rank-hours", cost["currency"] or "")


def _loss(at: int, loss: Loss, cost: Cost) -> Iterator[Words]:
    path, what = ("ledger", "cost", "losses", at), WORDS.get(loss["kind"], loss["kind"])
    yield f"{what}: {loss['subject']}" if loss["subject"] else what
    yield SCOPES[loss["scope"]]
    yield number(*path, "rank_hours", form="hours")
    if cost["money"] is not None:
        yield number(*path, "money", form="money")
