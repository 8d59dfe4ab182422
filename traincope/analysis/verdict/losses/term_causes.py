"""Causes within terms: slices of a ledger term, or of a part of the job's time.

The slices of a term do not overlap, and their sum never exceeds the term: what no cause explains is the rest. So the
ledger stays one sum. `loss_breakdown` lists losses that may overlap, to compare them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from traincope.analysis.attribution.terms import BUBBLE, JOB_WAIT, UNATTRIBUTED, exposed_transfer, exposed_wait
from traincope.analysis.communication.job_waits import job_waits
from traincope.analysis.efficiency.utilization import AT_WORK
from traincope.analysis.faults.anomalies.data_order import DataOrder, Order
from traincope.analysis.kernels.unfused import Unfused
from traincope.analysis.stragglers.late_ranks import LateRanks
from traincope.analysis.verdict.losses.loss_breakdown import LossKind, Results, Scope, padding_ns, stage_parts
from traincope.units import numbers

MAX_CAUSES = 16
"""Largest number of causes of one term; the others are part of the rest."""


class Basis(StrEnum):
    """Basis of a cause's time; the value is its spelling in JSON."""

    MEASURED = "measured"
    PROPORTION = "proportion"
    """Estimate: a known sum, divided in proportion of time."""
    AT_PEAK = "at_peak"
    """Lower bound: FLOPs at the hardware's peak."""
    AT_MOST = "at_most"
    """Upper bound."""
    REST = "rest"
    """Remainder of the terms' time above their FLOPs at peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One slice."""

    kind: LossKind
    subject: str
    """Axes, stage, rank, phase or reason; empty if the kind has one slice only."""
    ns: int
    """Sum over ranks. Only parts of the bubble's jitter can be negative."""
    basis: Basis


@dataclass(frozen=True, slots=True, kw_only=True)
class TermCauses:
    """The slices of one term, or of the sum of several, the largest first."""

    scope: Scope
    terms: tuple[str, ...]
    """Terms of the ledger; in the scope of the job, parts of goodput."""
    ns: int
    """Time of the terms: over ranks and counted steps, or of one rank's job."""
    causes: tuple[Cause, ...]

    @property
    def rest_ns(self) -> int:
        """Time that no cause explains."""
        return self.ns - sum(cause.ns for cause in self.causes)


class SlicedResults(Results, Protocol):
    """Results that causes are computed from; an `Analysis` has them all."""

    @property
    def late_ranks(self) -> LateRanks: ...

    @property
    def unfused(self) -> Unfused | None: ...

    @property
    def data_order(self) -> DataOrder | None: ...


def term_causes(analysis: SlicedResults) -> tuple[TermCauses, ...]:
    """Slice the terms of the counted steps, in the order of the ledger, and the job's productive time."""
    if not analysis.ledger.wall_ns:
        return ()
    sliced = [
        *_compute(analysis),
        *_transfers(analysis),
        *_waits(analysis),
        *_job_waits(analysis),
        *_parts(analysis),
        *_bubble(analysis),
        *_recorder(analysis),
        *_productive(analysis),
    ]
    return tuple(each for each in sliced if each.causes)


def _compute(analysis: SlicedResults) -> Iterator[TermCauses]:
    """Forward and backward above their model FLOPs at peak; and chains that could be fused, in any phase."""
    fusible = _fusible_ns(analysis)
    yield _sliced(analysis, AT_WORK, _above_model(analysis, fusible))
    for phase, ns in fusible.items():
        if phase not in AT_WORK and phase in analysis.ledger.order:
            yield _sliced(analysis, (phase,), [_fused(phase, ns)])


def _fusible_ns(analysis: SlicedResults) -> dict[str, int]:
    """Phase -> at most what fusion saves in it. Only the traces of an imported run contain the ledger's steps."""
    traced = analysis.unfused if analysis.timeline.run.info.imported else None
    return {} if traced is None else dict(traced.saved_by_phase)


def _fused(phase: str, ns: int) -> Cause:
    return Cause(kind=LossKind.UNFUSED_KERNELS, subject=phase, ns=ns, basis=Basis.AT_MOST)


def _above_model(analysis: SlicedResults, fusible: dict[str, int]) -> Iterator[Cause]:
    """Padding is a part of redundant compute, and chains of the kernels' inefficiency: each counts once."""
    padding = round(padding_ns(analysis) or 0)
    yield Cause(kind=LossKind.EXPERT_PADDING, subject="", ns=padding, basis=Basis.AT_PEAK)
    redundant = _ns_of(analysis, LossKind.REDUNDANT_COMPUTE)
    yield Cause(kind=LossKind.REDUNDANT_COMPUTE, subject="", ns=redundant - padding, basis=Basis.AT_PEAK)
    chains = [_fused(phase, fusible[phase]) for phase in AT_WORK if phase in fusible]
    yield from chains
    inefficiency = _ns_of(analysis, LossKind.KERNEL_INEFFICIENCY) - sum(chain.ns for chain in chains)
    yield Cause(kind=LossKind.KERNEL_INEFFICIENCY, subject="", ns=inefficiency, basis=Basis.REST)


def _ns_of(analysis: SlicedResults, kind: LossKind) -> int:
    """Time of a bar of the waterfall of utilization in the counted steps; 0 if it is unknown."""
    shares, busy = analysis.utilization.ratios.waterfall, sum(analysis.ledger.share(term) or 0.0 for term in AT_WORK)
    ratio = None if shares is None else shares.get(kind)
    return round(_total(analysis, AT_WORK) * ratio / busy) if ratio and busy else 0


def _transfers(analysis: SlicedResults) -> Iterator[TermCauses]:
    """Transfers that may be waits; and longer transfers, as far as they are exposed, in proportion."""
    ambiguous = analysis.ledger.ambiguous_waits()
    for axis in dict.fromkeys(row.axis for row in analysis.comm):
        causes = [
            Cause(kind=LossKind.AMBIGUOUS_WAIT, subject=why.value, ns=ns, basis=Basis.MEASURED)
            for (on, why), ns in ambiguous.items()
            if on == axis
        ]
        yield _sliced(analysis, (exposed_transfer(axis),), [*causes, *_longer(analysis, axis)])


def _longer(analysis: SlicedResults, axis: str) -> Iterator[Cause]:
    for row in (row for row in analysis.comm if row.axis == axis and row.transfer_ns > 0):
        exposed = min(row.exposed_transfer_ns / row.transfer_ns, 1.0)
        if row.message_imbalance is not None:
            yield _part(LossKind.MESSAGE_IMBALANCE, row.operation, row.message_imbalance.cost_ns, exposed)
        for other in row.contention:
            yield _part(LossKind.CONTENTION, f"{row.operation} during {other.axis}", other.extra_ns or 0, exposed)


def _part(kind: LossKind, subject: str, ns: int, exposed: float) -> Cause:
    return Cause(kind=kind, subject=subject, ns=int(ns * exposed), basis=Basis.PROPORTION)


def _waits(analysis: SlicedResults) -> Iterator[TermCauses]:
    """Exposed wait by the rank that joined last. Where the bubble owns some of the waits, in proportion."""
    for axis, by_rank in analysis.late_ranks.waits_ns.items():
        term, waited_ns = exposed_wait(axis), sum(by_rank.values())
        total_ns = analysis.ledger.total(term) or 0
        basis = Basis.MEASURED if waited_ns == total_ns else Basis.PROPORTION
        causes = (
            Cause(kind=LossKind.LATE_RANK, subject=f"rank {rank}", ns=total_ns * ns // waited_ns, basis=basis)
            for rank, ns in by_rank.items()
            if rank is not None and ns
        )
        yield _sliced(analysis, (term,), causes)


def _job_waits(analysis: SlicedResults) -> Iterator[TermCauses]:
    """Waits for other jobs, by role; in proportion, because a role's part of the counted steps is that of all steps."""
    if JOB_WAIT not in analysis.ledger.order:
        return
    by_role, total_ns = job_waits(analysis.timeline, analysis.ledger), analysis.ledger.total(JOB_WAIT) or 0
    all_ns = sum(by_role.values())
    causes = (
        Cause(kind=LossKind.AWAITED_JOB, subject=role, ns=total_ns * ns // all_ns, basis=Basis.PROPORTION)
        for role, ns in by_role.items()
    )
    yield _sliced(analysis, (JOB_WAIT,), causes)


def _parts(analysis: SlicedResults) -> Iterator[TermCauses]:
    """Divide the parts of a step that are not training by their content. Time that no probe covers is the rest."""
    inside = analysis.ledger.parts()
    for part in dict.fromkeys(part for part, _ in inside):
        causes = (
            Cause(kind=LossKind.PART, subject=term, ns=ns, basis=Basis.MEASURED)
            for (of, term), ns in inside.items()
            if of == part and term not in (part, UNATTRIBUTED)
        )
        yield _sliced(analysis, (part,), causes)


def _bubble(analysis: SlicedResults) -> Iterator[TermCauses]:
    """The bubble's terms by stage: a division of the whole term, with the signs of its parts."""
    stages = analysis.bubble.stages if analysis.bubble else ()
    for term in BUBBLE:
        causes = [
            Cause(kind=kind, subject=name, ns=ns, basis=Basis.MEASURED)
            for stage in stages
            for kind, name, ns in stage_parts(stage)
            if kind == term and ns
        ]
        by_size = tuple(sorted(causes, key=lambda cause: -cause.ns))
        yield TermCauses(scope=Scope.STEPS, terms=(term,), ns=_total(analysis, (term,)), causes=by_size)


def _recorder(analysis: SlicedResults) -> Iterator[TermCauses]:
    """The recorder's own CPU time. It may lie in any term, and its own threads may have run next to the training."""
    counted = {rank.rank: set(rank.numbers[rank.counted].tolist()) for rank in analysis.ledger.ranks}
    own_ns = sum(
        step.own_ns
        for rank in analysis.timeline.ranks
        for step in rank.steps
        if step.number in counted.get(rank.rank, ())
    )
    cause = Cause(kind=LossKind.RECORDER, subject="", ns=own_ns, basis=Basis.AT_MOST)
    yield _sliced(analysis, tuple(term for term in analysis.ledger.order if analysis.ledger.total(term)), [cause])


def _productive(analysis: SlicedResults) -> Iterator[TermCauses]:
    """Steps on batches that the state had had: they survived, so they are productive time, at the mean step."""
    job = analysis.goodput
    if job is None or not job.productive_ns or not job.steps_kept or analysis.data_order is None:
        return
    again = [each for each in analysis.data_order.continuations if each.order is Order.FED_AGAIN]
    causes = [
        Cause(
            kind=LossKind.DATA_FED_AGAIN,
            subject=f"attempt {each.attempt}, {numbers(range(each.first_step, each.last_step + 1), 'step')}",
            ns=(each.last_step + 1 - each.first_step) * job.productive_ns // job.steps_kept,
            basis=Basis.PROPORTION,
        )
        for each in {(each.attempt, each.first_step, each.last_step): each for each in again}.values()
        if each.first_step is not None and each.last_step is not None
    ]
    yield TermCauses(
        scope=Scope.JOB, terms=("productive",), ns=job.productive_ns, causes=_within(causes, job.productive_ns)
    )


def _sliced(analysis: SlicedResults, terms: Sequence[str], causes: Iterable[Cause]) -> TermCauses:
    ns = _total(analysis, terms)
    return TermCauses(scope=Scope.STEPS, terms=tuple(terms), ns=ns, causes=_within(causes, ns))


def _total(analysis: SlicedResults, terms: Sequence[str]) -> int:
    return sum(analysis.ledger.total(term) or 0 for term in terms)


def _within(causes: Iterable[Cause], ns: int) -> tuple[Cause, ...]:
    """Keep what fits into `ns`: the first causes whole, a later one cut, none negative."""
    kept, rest_ns = [], max(ns, 0)
    for cause in causes:
        own_ns = min(max(cause.ns, 0), rest_ns)
        rest_ns -= own_ns
        if own_ns:
            kept.append(replace(cause, ns=own_ns))
    return tuple(sorted(kept, key=lambda cause: -cause.ns)[:MAX_CAUSES])
