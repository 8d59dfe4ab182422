"""Findings about the order of the data: after a restart, from pass to pass, and between workers and ranks."""

from collections.abc import Iterator

from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.faults.anomalies.data_order import DataOrder, Order
from traincope.analysis.faults.anomalies.fed_data import FedData, SameBatches
from traincope.analysis.faults.anomalies.stale_rollouts import StaleRollouts
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.analysis.verdict.losses.host_losses import ONE_ITERATOR
from traincope.timeline import Timeline
from traincope.units import count, numbers

WRONG = {
    Order.FED_AGAIN: "data were fed again after a restart",
    Order.SKIPPED: "data were skipped after a restart",
    Order.REORDERED: "data came in another order after a restart",
}
AFTER_A_RESTART = (
    "Restore the sampler with the state: call sampler.set_epoch(epoch) for the epoch of its step first, then skip only "
    "the batches of this epoch that the state has had."
)
FROM_OTHER_STATES = (
    "Let all ranks continue from the same step: the newest checkpoint that all of them have (reduce its step with MIN "
    "before loading)."
)
EVERY_EPOCH = "Call sampler.set_epoch(epoch) before each pass, also before the first one after a restart."
DIVIDE = "Give the DataLoader a DistributedSampler, or let an IterableDataset yield only the part of its rank."
DIVIDE_WORKERS = (
    "In the dataset's __iter__, let each worker yield only its part: torch.utils.data.get_worker_info() has its id and "
    "their number."
)
DIVIDES = "Give each rank its own rank and the number of ranks: the sampler got the same rank on all of them."

MAX_GROUPS = 3
"""Most groups of ranks that a finding lists."""
DIVIDES_FURTHER = (
    "Divide the data by all axes whose ranks train on different data: give the sampler the number of all their ranks "
    "(dp_replicate x dp_shard) and the place among them, not those of one axis."
)


def rollout_findings(stale: StaleRollouts | None) -> Iterator[Finding]:
    """At most one finding: the weights of the rollouts are no longer renewed."""
    if stale is not None:
        since = "have not been synchronised" if stale.renewed else "were never synchronised"
        yield Finding(
            kind=FindingKind.STALE_ROLLOUTS,
            confidence=HIGH if stale.renewed else MEDIUM,  # the plan may be to renew them less often than that
            evidence=(
                f"rollouts are stale: those of the last {count(stale.held_steps, 'step')} are made with weights of "
                f"version {stale.version}, which {since} in that time and are {count(stale.lag, 'version')} behind"
            ),
            advice=(
                "Look at what brings the weights to the engine: its last update, its errors, and whether the engine "
                "that generates is the one that gets them."
            ),
        )


def data_findings(timeline: Timeline, order: DataOrder | None, fed: FedData | None) -> Iterator[Finding]:
    """One finding for each kind of wrong order."""
    everyone = tuple(rank.rank for rank in timeline.ranks)
    for each in () if order is None else order.continuations:
        if each.order in WRONG:
            yield _finding(
                everyone,
                each.ranks,
                evidence=f"{WRONG[each.order]}: {each.what}",
                advice=AFTER_A_RESTART if each.ranks == everyone else FROM_OTHER_STATES,
                steps=tuple(step for step in (each.first_step, each.last_step) if step is not None),
            )
    if fed is not None and fed.same_batches is not None:
        same = fed.same_batches
        yield _finding(
            everyone,
            same.ranks,
            evidence=f"{_fed_alike(everyone, same)}, so averaging their gradients adds nothing",
            advice=DIVIDE if not same.divides else DIVIDES if same.groups == (everyone,) else DIVIDES_FURTHER,
        )
    if fed is not None and fed.once_per_worker is not None:
        again = fed.once_per_worker
        yield _finding(
            everyone,
            again.ranks,
            evidence=(
                f"each batch is fed {again.workers} times in a row ({again.batches:,} different batches were "
                f"compared), once by each of the {again.workers} workers of the DataLoader: the dataset is iterable, "
                "and every worker yields all of it"
            ),
            advice=DIVIDE_WORKERS,
        )
    if fed is not None and fed.begun_anew is not None:
        begun = fed.begun_anew
        first = "first batch" if begun.batches == 1 else f"first {begun.batches} batches"
        when = "in each step" if begun.in_each_step else "again and again"
        yield _finding(
            everyone,
            begun.ranks,
            evidence=(
                f"the iterator of the DataLoader is made anew {when}, {begun.iterators:,} times, and each gives only "
                f"its {first}: no other data are fed"
            ),
            advice=f"{ONE_ITERATOR}.",
        )
    if fed is not None and fed.same_order is not None:
        passes = fed.same_order
        yield _finding(
            everyone,
            passes.ranks,
            evidence=(
                f"{passes.passes} passes had their {passes.batches:,} batches in the "
                "same order, although the sampler shuffles: set_epoch was not called"
            ),
            advice=EVERY_EPOCH,
            confidence=MEDIUM,
        )


def _fed_alike(everyone: tuple[int, ...], same: SameBatches) -> str:
    compared = f"({same.batches:,} were compared)"
    if same.groups == (everyone,):
        return f"all {len(everyone)} ranks are fed the same batches {compared}"
    first, *others = (numbers(group, "rank") for group in same.groups[:MAX_GROUPS])
    more = count(len(same.groups) - MAX_GROUPS, "more group") if len(same.groups) > MAX_GROUPS else ""
    also = ", ".join(filter(None, (*others, more)))
    return f"{first} are fed the same batches {compared}{f', and so are {also}' if also else ''}"


def _finding(
    everyone: tuple[int, ...],
    ranks: tuple[int, ...],
    *,
    evidence: str,
    advice: str,
    steps: tuple[int, ...] = (),
    confidence: str = HIGH,
) -> Finding:
    return Finding(
        kind=FindingKind.DATA_ORDER,
        ranks=() if ranks == everyone else ranks,
        steps=steps,
        confidence=confidence,
        evidence=evidence,
        advice=advice,
    )
