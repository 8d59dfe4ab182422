"""Findings about parameters and optimizer state that went bad, or that differ between replicas."""

from collections.abc import Iterator, Sequence

from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.faults.anomalies.apart import Apart
from traincope.analysis.faults.anomalies.corruption import Corruption, StateChecks
from traincope.analysis.faults.anomalies.late_backwards import LateBackwards
from traincope.analysis.faults.anomalies.learning_rates import DifferentRates
from traincope.analysis.faults.anomalies.left_out_updates import LeftOutUpdates
from traincope.analysis.faults.anomalies.outside_units import NeverEqual, OutsideUnits
from traincope.analysis.faults.anomalies.unreduced import UnreducedGradients
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.recovery import recovery
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.timeline import Timeline
from traincope.units import numbers, size

KINDS = {
    FaultKind.CORRUPTED_STATE: FindingKind.CORRUPTED_STATE,
    FaultKind.REPLICAS_DIFFER: FindingKind.REPLICAS_DIFFER,
}

WRAP = {
    "FSDP": "Call fully_shard(model) after its blocks: the root unit takes all parameters that no block has.",
    "DDP": "Give DDP one module that contains all trained parameters, or reduce the gradients of the others by hand.",
}
MAX_NAMED_PARAMETERS = 3
MAX_NAMED = 8
"""Ranks of one rate, and rates, that are named."""


def bad_state(timeline: Timeline, faults: Sequence[Fault], state: StateChecks | None) -> Iterator[Finding]:
    """One finding for each corruption. `faults`: of the same timeline, with its checkpoints."""
    for corruption in () if state is None else state.corruptions:
        yield Finding(
            kind=KINDS[corruption.kind],
            ranks=corruption.ranks,
            steps=(corruption.step,),
            confidence=corruption.confidence,
            evidence=f"{corruption.what}, {corruption.evidence}",
            advice=_advice(timeline, faults, corruption),
        )


def unreduced(gradients: UnreducedGradients | None) -> Iterator[Finding]:
    """Finding about replicas that drift apart because gradients are not reduced."""
    if gradients is None:
        return
    steps, outside = f"in all {gradients.num_steps} steps with detail", gradients.outside
    if outside is not None:
        others = f" and {outside.parameters - 1} others" if outside.parameters > 1 else ""
        evidence = (
            f"replicas drift apart: the optimizer trains {outside.first}{others}, {size(outside.bytes)} in all, that "
            f"came or were unfrozen after DDP was made, and their gradients are never reduced: {steps}, collectives "
            f"have at most {size(gradients.reduced_bytes)}, and the parameters that DDP reduces "
            f"{size(outside.reduced_bytes)}"
        )
        advice = (
            "Put the adapters in, and unfreeze the layers, before DDP wraps the model. Then restart from a checkpoint "
            "that was equal on all ranks."
        )
    elif gradients.by_ddp:
        evidence = (
            f"replicas drift apart: {steps}, backward and optimizer ran and DDP reduced no gradients"
            f"{'; torch counted fewer collectives than steps' if gradients.counted else ''}"
        )
        advice = (
            "Call the model that DDP returns (model(x), not model.module(x)), and leave model.no_sync() before the "
            "last backward of each step. Then restart from a checkpoint that was equal on all ranks."
        )
    else:
        evidence = (
            f"replicas drift apart: {steps}, collectives between backward and optimizer have at most "
            f"{size(gradients.reduced_bytes)}, and the gradients {size(gradients.gradient_bytes)}: "
            "some are never reduced"
        )
        advice = (
            "Reduce every parameter's gradient before the optimizer, or let DDP do it. With corruption_check_steps the "
            "replicas are compared."
        )
    yield Finding(
        kind=FindingKind.UNREDUCED_GRADIENTS,
        confidence=HIGH if gradients.counted or outside is not None else MEDIUM,
        evidence=evidence,
        advice=advice,
    )


def parts_apart(apart: Apart | None) -> Iterator[Finding]:
    """Finding about replicas that drift apart because parts of the job exchange nothing."""
    if apart is None:
        return
    first, *others = (numbers(part, "rank") for part in apart.parts[:MAX_NAMED])
    more = f" and {len(apart.parts) - MAX_NAMED} more parts" if len(apart.parts) > MAX_NAMED else ""
    along = f", along the mesh axis {apart.axis}," if apart.axis is not None else ""
    yield Finding(
        kind=FindingKind.UNREDUCED_GRADIENTS,
        confidence=MEDIUM,
        evidence=(
            f"replicas drift apart: {first}, and {', and '.join(others)}{more}{along} have gradients of the same size "
            f"and exchange nothing in all {apart.num_steps} steps with detail: each part trains a model of its own"
        ),
        advice=(
            f"Give FSDP or DDP the whole mesh{f', {apart.axis} included' if apart.axis is not None else ''} (for "
            "replicas of shards, fully_shard takes a mesh of two axes). Then restart from a checkpoint that was equal "
            "on all ranks. If the parts are meant to train apart, as in an ensemble, or "
            "to be averaged at longer intervals (DiLoCo), all is well."
        ),
    )


def outside_of_units(drifting: OutsideUnits) -> Iterator[Finding]:
    """Finding about replicas that drift apart in parameters that are in no unit of FSDP or DDP."""
    named = drifting.names[:MAX_NAMED_PARAMETERS]
    others = f" and {drifting.parameters - len(named)} others" if drifting.parameters > len(named) else ""
    yield Finding(
        kind=FindingKind.UNREDUCED_GRADIENTS,
        confidence=HIGH,
        evidence=(
            f"replicas drift apart: the optimizer trains {', '.join(named)}{others}, {size(drifting.bytes)} in all, "
            f"that are in no unit of {drifting.unit}, and their gradients are never reduced: before the first update "
            f"they were equal on {drifting.num_ranks} ranks, and in all {drifting.num_looks} later steps in which they "
            "were compared they differ"
        ),
        advice=f"{WRAP[drifting.unit]} Then restart from a checkpoint that was equal on all ranks.",
    )


def never_the_same(found: NeverEqual | None) -> Iterator[Finding]:
    """Finding about replicas whose parameters differ from the begin on."""
    if found is None:
        return
    yield Finding(
        kind=FindingKind.REPLICAS_DIFFER,
        confidence=HIGH,
        evidence=(
            f"replicas were never the same: {', '.join(found.names[:MAX_NAMED_PARAMETERS])} and others differ between "
            f"the {found.num_ranks} ranks before the first update, and in all {found.num_looks - 1} later steps in "
            "which they were compared, although every step averages all gradients"
        ),
        advice=(
            "Make the parameters equal before the first step: broadcast those of rank 0 (DDP does), or seed all ranks "
            "alike until the model is made. Then train from the begin."
        ),
    )


def added_after_reduction(late: LateBackwards | None) -> Iterator[Finding]:
    """Finding about replicas that drift apart because backwards come after the one that reduces."""
    if late is None:
        return
    last = "the last one" if late.late == 1 else f"the last {late.late}"
    yield Finding(
        kind=FindingKind.UNREDUCED_GRADIENTS,
        confidence=MEDIUM,
        evidence=(
            f"replicas drift apart: in all {late.num_steps} steps of the optimizer that show it, DDP reduced gradients "
            f"in an earlier one of {late.backwards} backwards, and those of {last} before the optimizer are never "
            "reduced"
        ),
        advice=(
            "Let the last backward before the optimizer reduce, and only the ones before it run in model.no_sync(): "
            "with i from 0, it is the last one of n if (i + 1) % n == 0. Then restart from a checkpoint that was equal "
            "on all ranks."
        ),
    )


def left_out(found: LeftOutUpdates | None) -> Iterator[Finding]:
    """Finding about replicas that drift apart because a rank decides by itself whether to update."""
    if found is None:
        return
    by_number: dict[int, list[int]] = {}
    for rank, number in found.left_out.items():
        by_number.setdefault(number, []).append(rank)
    each = ", ".join(
        f"{numbers(ranks[:MAX_NAMED], 'rank')}{' and others' if len(ranks) > MAX_NAMED else ''} left out {number:,}"
        for number, ranks in sorted(by_number.items(), reverse=True)[:MAX_NAMED]
    )
    repeated = max(found.left_out.values()) > 1
    yield Finding(
        kind=FindingKind.REPLICAS_DIFFER,
        ranks=found.ranks,
        steps=(found.since,),
        confidence=HIGH if repeated else MEDIUM,
        evidence=(
            f"replicas drift apart: of {found.num_backwards:,} updates by gradients that DDP had reduced, {each}, "
            f"first that of step {found.since}: the optimizer did not step there, and on the other ranks it did"
        ),
        advice=(
            "Let all ranks decide alike whether to skip an update: all_reduce the loss, norm or flag that decides "
            "(dist.all_reduce(flag, op=dist.ReduceOp.MAX)). Then restart from a checkpoint that was equal on all ranks."
        ),
    )


def unequal_rates(different: DifferentRates | None) -> Iterator[Finding]:
    """Finding about replicas that drift apart because their learning rates differ."""
    if different is None:
        return
    by_rate: dict[str, list[int]] = {}
    for rank, rate in different.rates.items():
        by_rate.setdefault(f"{rate:.4g}", []).append(rank)
    rates = ", ".join(
        f"{rate} on {numbers(ranks[:MAX_NAMED], 'rank')}{' and others' if len(ranks) > MAX_NAMED else ''}"
        for rate, ranks in list(by_rate.items())[:MAX_NAMED]
    )
    yield Finding(
        kind=FindingKind.REPLICAS_DIFFER,
        ranks=different.odd,
        steps=(different.since,),
        confidence=MEDIUM,  # a schedule whose period is that of the readings looks different one step later
        evidence=(
            "replicas drift apart: ranks with the same gradients of DDP train with different learning rates since step "
            f"{different.since} at the latest, in step {different.step} with {rates}"
        ),
        advice=(
            "Let the schedule see the same on all ranks: all_reduce the loss or metric before scheduler.step(metric), "
            "or broadcast the rate of one rank. Then restart from a checkpoint that was equal on all ranks."
        ),
    )


def _advice(timeline: Timeline, faults: Sequence[Fault], corruption: Corruption) -> str:
    """Advice to go back to a state that was good: later checkpoints may have the bad one."""
    if corruption.kind is FaultKind.REPLICAS_DIFFER:
        return "Find out why these ranks differ before you keep a checkpoint of them: each trains another model."
    until_ns = timeline.start_ns if corruption.good_ns is None else corruption.good_ns
    host_of = corruption.ranks if len(corruption.ranks) == 1 else ()
    first = "Stop the job: the bad value trains on, and later checkpoints contain it."
    test = "Test the memory of the host and of its GPU before it trains again."
    return " ".join([first, *recovery(timeline, faults, before_ns=until_ns, host_of=host_of), test])
