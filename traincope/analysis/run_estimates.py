"""Numbers of all steps of a run that is recorded in windows: operations, the bubble by stage, and rows of ranks.

The ledger and the critical path have such estimates of their own terms. Here, stalls of each operation are parts of the
phases in which they lie, like the ledger's terms. Calls, bytes and time on the wire follow the length of their step.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincope.analysis.attribution.stalls import StallSplit
from traincope.analysis.attribution.terms import BUBBLE, COMPUTE, sums_of_terms
from traincope.analysis.attribution.thread_slices import ThreadSlices, phase_codes
from traincope.analysis.attribution.transfers import Transfers
from traincope.analysis.communication.axis_operations import AxisOperation, counted_parts
from traincope.analysis.context import Context
from traincope.analysis.ledger.estimates import Estimate, SampledSteps, estimated_amount, estimated_shares
from traincope.analysis.ledger.ledger import Ledger, RankLedger, sampled_steps
from traincope.analysis.pipeline.bubble import Bubble
from traincope.analysis.stragglers.stragglers import RankWait, Stragglers
from traincope.arrays import Floats, Ints, Numbers
from traincope.timeline import RankTimeline
from traincope.timeline.intervals.numbering import Numbering

BUBBLE_SUMS = {term.removeprefix("bubble."): (term,) for term in BUBBLE} | {"bubble": BUBBLE}
"""Name of a part of the bubble, and of all of it -> its terms."""

MAX_HIDDEN = 0.05
"""Share of an operation's time on the wire above which its estimated part decides the error."""
HIDDEN = "it contains hidden transfers, whose time is itself estimated from others"

Name = tuple[str, str]
"""Axis and operation."""
FEW_WAITS = "few long waits for single ranks decide"

PhaseStalls = Mapping[tuple[str, str, str], tuple[Floats, Floats]]
"""(Phase, axis, operation) -> wait and transfer of one rank, ns per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationEstimates:
    """One operation on one axis over all steps."""

    count: Estimate
    """Mean per rank and step."""
    num_bytes: Estimate
    """Mean per rank and step."""
    transfer: Estimate
    """Share of step time, as the next two. On the wire, hidden or not."""
    wait: Estimate
    exposed: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEstimates:
    """One rank over all steps: shares of its step time."""

    compute: Estimate
    exposed: Estimate
    """Exposed communication of all axes."""
    bubble: Estimate
    own_wait: Estimate
    """Sampled steps only, without an interval, like `straggler_wait`."""
    straggler_wait: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEstimates:
    """Estimates over all steps, from the steps that windows show."""

    operations: Mapping[Name, OperationEstimates]
    """By axis and operation."""
    bubble: Mapping[str, Estimate]
    """Schedule, imbalance, jitter and their sum `bubble` as shares of step time. Empty without a pipeline."""
    stages: Mapping[int, Mapping[str, Estimate]]
    """The same for the ranks of each entry of `Bubble.stages`, by its `stage`."""
    ranks: Mapping[int, RankEstimates]


def phase_stalls(rank: RankTimeline, slices: ThreadSlices, split: StallSplit) -> PhaseStalls:
    """Sum one rank's stalls by operation, step, and the phase that a light step would record at the same time."""
    step = slices.step[split.at]
    phase = phase_codes(rank, slices)[split.at].astype(np.int64)
    kinds = (phase * len(split.axes) + split.axis_code) * len(split.operations) + split.operation_code
    numbering = Numbering.of(kinds)  # a run may have a million names, of which few are operations
    sums, number, inside = np.zeros((2, len(numbering), len(rank.steps))), numbering.number(kinds), step >= 0
    np.add.at(sums[0], (number[inside], step[inside]), split.wait_ns[inside])
    np.add.at(sums[1], (number[inside], step[inside]), split.transfer_ns[inside])
    result = {}
    for at, kind in enumerate(numbering.values.tolist()):
        rest, operation = divmod(kind, len(split.operations))
        phase_code, axis = divmod(rest, len(split.axes))
        result[slices.terms[phase_code], split.axes[axis], split.operations[operation]] = (sums[0, at], sums[1, at])
    return result


def run_estimates(
    context: Context,
    ledger: Ledger,
    stalls: Mapping[int, PhaseStalls],
    *,
    operations: Sequence[AxisOperation],
    bubble: Bubble | None,
    stragglers: Stragglers,
) -> RunEstimates | None:
    """Estimate the numbers of all steps; None if all steps have detail. `stalls` are those of all ranks."""
    if ledger.run is None:
        return None
    stages = {} if bubble is None else {stage.stage: stage.ranks for stage in bubble.stages}
    steps = {stage: sampled_steps([rank for rank in ledger.ranks if rank.rank in of]) for stage, of in stages.items()}
    return RunEstimates(
        operations=_operations(context, ledger, stalls, [(row.axis, row.operation) for row in operations]),
        bubble={} if bubble is None else estimated_shares(sampled_steps(ledger.ranks), BUBBLE_SUMS),
        stages={stage: estimated_shares(of, BUBBLE_SUMS) for stage, of in steps.items()},
        ranks={
            rank.rank: _rank(rank, ledger.order, waits)
            for rank, waits in zip(ledger.ranks, stragglers.ranks, strict=True)
            if rank.num_counted
        },
    )


def _rank(rank: RankLedger, order: Sequence[str], waits: RankWait) -> RankEstimates:
    sums = sums_of_terms(order)
    exposed = [term for name, terms in sums.items() if name != "bubble" for term in terms]
    terms = {"compute": COMPUTE, "exposed": exposed, "bubble": sums.get("bubble", ())}
    shares = estimated_shares(sampled_steps([rank]), terms)
    return RankEstimates(
        compute=shares["compute"],
        exposed=shares["exposed"],
        bubble=shares["bubble"],
        own_wait=_sampled_mean(rank, waits.own_wait_ns),
        straggler_wait=_sampled_mean(rank, waits.straggler_wait_ns),
    )


def _sampled_mean(rank: RankLedger, ns: int) -> Estimate:
    share = ns / max(rank.total_wall_ns, 1)
    return Estimate(estimate=share, low=None, high=None, steps=rank.num_counted, reason=FEW_WAITS)


def _operations(
    context: Context, ledger: Ledger, stalls: Mapping[int, PhaseStalls], names: Sequence[Name]
) -> dict[Name, OperationEstimates]:
    steps, rank_steps = sampled_steps(ledger.ranks), sum(int(rank.timed.sum()) for rank in ledger.ranks)
    stalled = _stalled(steps, ledger.ranks, stalls)
    waits = estimated_shares(stalled, {name: (_term(name, "wait"),) for name in names})
    exposed = estimated_shares(stalled, {name: (_term(name, "wait"), _term(name, "transfer")) for name in names})
    result = {}
    for name in names:
        chosen = _parts(context, ledger, name)
        count, num_bytes, wire_ns = _amounts(context, chosen, steps.numbers)
        result[name] = OperationEstimates(
            count=estimated_amount(steps, count, per=rank_steps),
            num_bytes=estimated_amount(steps, num_bytes, per=rank_steps),
            transfer=estimated_amount(
                steps,
                wire_ns,
                per=steps.wall_ns,
                why=_why_no_transfer(context.transfers, context.instances.number[chosen]),
            ),
            wait=waits[name],
            exposed=exposed[name],
        )
    return result


def _stalled(steps: SampledSteps, ranks: Sequence[RankLedger], stalls: Mapping[int, PhaseStalls]) -> SampledSteps:
    """Divide each phase into the stalls of each operation and the rest."""
    sums: dict[tuple[str, str], Floats] = defaultdict(lambda: np.zeros(len(steps.numbers)))
    for phase, length_ns in steps.lengths_ns.items():
        sums[phase, phase] += length_ns
    for rank in ranks:
        at = np.searchsorted(steps.numbers, rank.numbers[rank.counted])
        for (phase, axis, operation), parts in stalls[rank.rank].items():
            for part, ns in zip(("wait", "transfer"), parts, strict=True):
                np.add.at(sums[phase, _term((axis, operation), part)], at, ns[rank.counted])
                np.add.at(sums[phase, phase], at, -ns[rank.counted])
    return replace(steps, by_phase=dict(sums))


def _term(name: Name, part: str) -> str:
    return f"{part} of {name[1]} on {name[0]}"


def _parts(context: Context, ledger: Ledger, name: Name) -> Ints:
    """Find the counted parts of an operation."""
    instances, (axis, operation) = context.instances, name
    on_axis = instances.parts.axis_code == instances.axes.index(axis)
    of_operation = instances.parts.operation_code == instances.operations.index(operation)
    return np.flatnonzero(on_axis & of_operation & counted_parts(instances, ledger))


def _amounts(context: Context, parts: Ints, numbers: Ints) -> tuple[Floats, Floats, Floats]:
    """Sum the number, bytes and ns on the wire of these parts: one entry per step of `numbers`."""
    instances, amounts = context.instances, np.zeros((3, len(numbers)))
    at = np.searchsorted(numbers, instances.parts.step[parts].astype(np.int64))
    np.add.at(amounts[0], at, 1)
    np.add.at(amounts[1], at, instances.parts.num_bytes[parts])
    np.add.at(amounts[2], at, context.transfers.ns[instances.number[parts]])
    return amounts[0], amounts[1], amounts[2]


def _why_no_transfer(wire: Transfers, instances: Numbers) -> str | None:
    """Return why the time on the wire of these instances has no interval: the sampling error is not its only one."""
    unseen_ns = wire.ns[instances[~wire.measured[instances]]].sum()
    return HIDDEN if unseen_ns > MAX_HIDDEN * wire.ns[instances].sum() else None
