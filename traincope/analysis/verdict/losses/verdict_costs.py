"""Findings about ledger terms that cost more than they must, each with its advice."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from traincope.analysis.attribution.terms import JOB_WAIT, UNATTRIBUTED
from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.analysis.communication.job_waits import job_waits
from traincope.analysis.confidence import MEDIUM, UNKNOWN
from traincope.analysis.efficiency.experts import ExpertLoads
from traincope.analysis.faults.faults import Fault
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.analysis.ledger.run_ahead import RunAhead
from traincope.analysis.pipeline.bubble import Bubble
from traincope.analysis.stragglers.roots import Root
from traincope.analysis.stragglers.stragglers import Stragglers
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, Weighted, percent, with_gain
from traincope.analysis.verdict.losses.exposed_communication import exposed_findings, sampling_error
from traincope.analysis.verdict.losses.host_losses import HOST_LOSSES
from traincope.analysis.verdict.losses.hot_experts import HotAxis, hot_axes
from traincope.analysis.verdict.losses.pipeline_idle import Cause, find_cause, idle_findings
from traincope.analysis.verdict.losses.straggler_findings import slow_clocks, straggler_findings
from traincope.timeline import Timeline
from traincope.units import duration

LARGE_EVALUATION = 0.1
"""Share of a run from which evaluation is a finding. It is not a loss: the user asked for it."""

LAUNCH_BOUND = 0.5
"""Share of step time in phases after which the GPUs have nothing to do, from which launches limit them."""
BETWEEN_PHASES = {False: "covered by no probe", True: "work of the GPUs between the phases"}
COVER = {
    False: "Wrap logging, metrics and copies of the training loop in traincope.span(), and record again.",
    True: "Compute losses and metrics in the model's forward, or import a kernel trace, which names this work.",
}
"""True if marks on the GPUs' streams measured the ledger -> description of unattributed time, and the advice."""

TERM_OF = {FindingKind.DATA_BOUND: "data_wait", FindingKind.JOB_WAIT: JOB_WAIT} | {
    FindingKind(term): term for term in HOST_LOSSES
}
"""Kind of finding -> its ledger term."""


def cost_findings(
    timeline: Timeline,
    ledger: Ledger,
    bubble: Bubble | None,
    comm: tuple[AxisOperation, ...],
    stragglers: Stragglers,
    roots: tuple[Root, ...] = (),
    experts: ExpertLoads | None = None,
    ahead: RunAhead | None = None,
    *,
    faults: Sequence[Fault] = (),
) -> list[Finding]:
    """Findings about the counted steps, ordered by their share of step time; `findings.ordered` ranks them by gain.

    `ahead`: the hosts' run-ahead, if marks on the GPUs' streams measured the ledger. `faults`: those of the GPUs count.
    """
    hot = tuple(hot_axes(ledger, comm, stragglers, experts))
    stragglers = _without_hot_experts(stragglers, hot)
    cause = find_cause(ledger, bubble, roots)
    late: dict[str, set[int]] = defaultdict(set)
    for straggler in stragglers.named:
        late[straggler.cause].add(straggler.rank)
    rank_findings = [
        *_data(ledger, cause, late["data_wait"]),
        *_job_wait(timeline, ledger),
        *_host(ledger, late),
        *straggler_findings(stragglers, slow_clocks(timeline, faults)),
    ]
    reported = {term for term, ranks in late.items() if ranks} | {
        TERM_OF[finding.kind] for _, finding in rank_findings if finding.kind in TERM_OF
    }
    weighted = [
        *rank_findings,
        *idle_findings(bubble, cause, reported=cause is not None and cause.term in reported),
        *exposed_findings(ledger, comm, stragglers, hot),
        *((hot_axis.share, hot_axis.finding) for hot_axis in hot),
        *_launch_bound(ahead),
        *_kernel_wait(ledger),
        *_evaluation(ledger),
        *_unattributed(ledger, late[UNATTRIBUTED], by_marks=ahead is not None),
    ]
    return [finding for _, finding in sorted(weighted, key=lambda pair: -pair[0])]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OtherRanks:
    """The ranks whose share of a term is not reported yet: all except the stragglers named for that term."""

    ledger: Ledger
    ledgers: tuple[RankLedger, ...]
    ranks: tuple[int, ...]
    """Ranks of the finding; empty for all ranks."""

    @classmethod
    def excluding(cls, late: Collection[int], ledger: Ledger) -> "_OtherRanks":
        ledgers = tuple(rank for rank in ledger.ranks if rank.rank not in late)
        return cls(ledger=ledger, ledgers=ledgers, ranks=tuple(rank.rank for rank in ledgers) if late else ())

    def share(self, term: str) -> float:
        """Share of the term in these ranks' step time."""
        return self.ledger.share_on(self.ledgers, term)

    @property
    def suffix(self) -> str:
        return " on the other ranks too" if self.ranks else ""


def _without_hot_experts(stragglers: Stragglers, hot: tuple[HotAxis, ...]) -> Stragglers:
    """Stragglers that no hot expert explains."""
    reported = [hot_axis.late for hot_axis in hot]
    return replace(stragglers, named=tuple(straggler for straggler in stragglers.named if straggler not in reported))


def _data(ledger: Ledger, cause: Cause | None, late: Collection[int]) -> Weighted:
    """A step lasts as long as its slowest rank, so the rank that waits most for data decides."""
    others = _OtherRanks.excluding(late, ledger)
    shares = {rank.rank: ledger.share_on((rank,), "data_wait") for rank in others.ledgers}
    largest = max(shares.values(), default=0.0)
    if largest < MIN_SHARE:
        return
    ranks = tuple(rank for rank, share in shares.items() if share >= largest / 2)
    all_ranks = len(ranks) == len(shares)
    consequence = f"; {cause.consequence}" if cause is not None and cause.term == "data_wait" else ""
    waiting = "training waits" if all_ranks else f"{len(ranks)} of {len(shares)} ranks wait"
    if others.ranks:
        waiting = "all other ranks wait" if all_ranks else f"{len(ranks)} of {len(shares)} other ranks wait"
    yield (
        largest,
        Finding(
            kind=FindingKind.DATA_BOUND,
            ranks=others.ranks if all_ranks else ranks,
            confidence=MEDIUM,
            evidence=f"{waiting} {percent(largest)} of step time for the next batch{consequence}",
            advice=with_gain(
                "Give the DataLoader more workers or a deeper prefetch, or preprocess the data before training", largest
            ),
            estimated_gain_ratio=largest,
        ),
    )


def _job_wait(timeline: Timeline, ledger: Ledger) -> Weighted:
    """A step lasts as long as its slowest rank, so the rank that waits most decides."""
    shares = {rank.rank: ledger.share_on((rank,), JOB_WAIT) for rank in ledger.ranks}
    largest = max(shares.values(), default=0.0)
    if largest < MIN_SHARE:
        return
    by_role = job_waits(timeline, ledger)
    names = {role: f"{role} ({percent(ns / sum(by_role.values()))} of it)" for role, ns in by_role.items()}
    awaited = ", ".join(names.values() if len(names) > 1 else names)
    ranks = tuple(rank for rank, share in shares.items() if share >= largest / 2)
    yield (
        largest,
        Finding(
            kind=FindingKind.JOB_WAIT,
            ranks=() if len(ranks) == len(shares) else ranks,
            confidence=MEDIUM,
            evidence=f"training waits {percent(largest)} of step time for other jobs: {awaited}",
            advice=with_gain(
                "Report the jobs together to see what they did then. Give them more GPUs, or let them work ahead",
                largest,
            ),
            estimated_gain_ratio=largest,
        ),
    )


def _host(ledger: Ledger, late: Mapping[str, Collection[int]]) -> Weighted:
    for term, (what, advice) in HOST_LOSSES.items():
        others = _OtherRanks.excluding(late.get(term, ()), ledger)
        share = others.share(term)
        if share >= MIN_SHARE:
            yield (
                share,
                Finding(
                    kind=FindingKind(term),
                    ranks=others.ranks,
                    confidence=MEDIUM,
                    evidence=f"{what} for {percent(share)} of step time{others.suffix}{sampling_error(ledger, term)}",
                    advice=with_gain(advice, share),
                    estimated_gain_ratio=share,
                ),
            )


def _launch_bound(ahead: RunAhead | None) -> Weighted:
    """Marks show that GPUs run out of work, not how much time each of their kernels then waits. So no gain is known."""
    if ahead is not None and ahead.empty_ratio >= LAUNCH_BOUND:
        yield (
            ahead.empty_ratio,
            Finding(
                kind=FindingKind.LAUNCH_BOUND,
                confidence=MEDIUM,
                evidence=(
                    f"the GPUs have nothing queued at the end of phases with {percent(ahead.empty_ratio)} of step "
                    f"time: their hosts run only {duration(ahead.median_ns)} ahead (median)"
                ),
                advice=(
                    "Launch fewer and larger kernels (torch.compile, CUDA graphs, larger batches), and remove calls "
                    "that wait for the GPU (.item(), print)."
                ),
            ),
        )


def _kernel_wait(ledger: Ledger) -> Weighted:
    """A trace shows that the host is not the cause, and not what is."""
    share = _OtherRanks.excluding((), ledger).share("kernel_wait")
    if share >= MIN_SHARE:
        yield (
            share,
            Finding(
                kind=FindingKind.KERNEL_WAIT,
                confidence=UNKNOWN,
                evidence=f"the GPUs idle for {percent(share)} of step time although their next kernel is launched",
                advice=(
                    "Use fewer and larger kernels: each begins 1 to 2 us after the one before. If single waits are "
                    "longer, trace fewer steps, because a full buffer of the profiler loses kernels, and look for "
                    "other processes on the GPUs and for callbacks of the host in their streams."
                ),
            ),
        )


def _evaluation(ledger: Ledger) -> Weighted:
    """Evaluation lies outside of the steps. Only the user knows what fewer evaluations would save."""
    share = ledger.evaluation_ratio
    if share >= LARGE_EVALUATION:
        yield (
            share,
            Finding(
                kind=FindingKind.EVALUATION,
                confidence=MEDIUM,
                evidence=f"evaluation takes {percent(share)} of the run, outside the steps",
                advice="Evaluate less often, on fewer batches, or on other ranks.",
            ),
        )


def _unattributed(ledger: Ledger, late: Collection[int], *, by_marks: bool) -> Weighted:
    others = _OtherRanks.excluding(late, ledger)
    share = others.share(UNATTRIBUTED)
    if share >= MIN_SHARE:
        yield (
            share,
            Finding(
                kind=FindingKind.UNATTRIBUTED,
                ranks=others.ranks,
                confidence=MEDIUM,
                evidence=f"{percent(share)} of step time is {BETWEEN_PHASES[by_marks]}{others.suffix}",
                advice=COVER[by_marks],
            ),
        )
