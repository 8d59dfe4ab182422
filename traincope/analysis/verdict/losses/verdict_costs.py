"""Findings about ledger terms that cost more than they must, each with its advice."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincope.analysis.attribution.terms import JOB_WAIT, UNATTRIBUTED
from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.analysis.communication.call_sites import RankCalls, all_messages
from traincope.analysis.communication.job_waits import job_waits
from traincope.analysis.confidence import MEDIUM, UNKNOWN
from traincope.analysis.efficiency.experts import ExpertLoads
from traincope.analysis.faults.faults import Fault
from traincope.analysis.faults.slow_code import SampledWindow, sampled_steps
from traincope.analysis.ledger.growing import Growing, growing
from traincope.analysis.ledger.host_shortages import HostShortage, bound_apart, full_hosts, short_ranks
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.analysis.ledger.run_ahead import RunAhead
from traincope.analysis.pipeline.bubble import Bubble
from traincope.analysis.replaying.prices import Prices
from traincope.analysis.replaying.replay import Factors
from traincope.analysis.stragglers.roots import Root
from traincope.analysis.stragglers.stragglers import Stragglers
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, Weighted, percent, priced
from traincope.analysis.verdict.losses.debugging import debugging
from traincope.analysis.verdict.losses.exposed_communication import exposed_findings
from traincope.analysis.verdict.losses.host_losses import (
    CHEAPER_BATCHES,
    DO_LESS,
    FULL_HOST,
    GIVE_WORKERS,
    HOST_LOSSES,
    MADE_ANEW,
    MADE_HERE,
    MORE_WORKERS,
    ONE_ITERATOR,
    PARTLY_REMOVED,
    WITH_WORKERS,
    fewer_kernels,
    host_advice,
    loads_itself,
    makes_iterators,
)
from traincope.analysis.verdict.losses.hot_experts import HotAxis, hot_axes
from traincope.analysis.verdict.losses.late_causes import Evidence, is_shown, stood_at
from traincope.analysis.verdict.losses.pipeline_idle import Cause, find_cause, idle_findings
from traincope.analysis.verdict.losses.shared_hosts import host_findings, without_blame
from traincope.analysis.verdict.losses.slow_links import LinkFaults
from traincope.analysis.verdict.losses.stop_findings import stop_losses
from traincope.analysis.verdict.losses.straggler_findings import (
    MAX_TERMS,
    sampled_findings,
    slow_clocks,
    straggler_findings,
)
from traincope.timeline import LedgerClock, Timeline
from traincope.timeline.device.works import has_launches, traces_host
from traincope.units import count, duration, numbers

LARGE_EVALUATION = 0.1
"""Share of a run from which evaluation is a finding. It is not a loss: the user asked for it."""

SAME_SHARE = 0.005
"""Difference of shares below which the largest stands for all ranks."""
MOST = 0.8
"""Share of a term that few ranks must have to be the ranks of its finding."""
ALIKE = 0.5
"""Share of a term's mean in all steps that sampled steps must have on average to stand for them."""
LAUNCH_BOUND = 0.5
"""Share of step time in phases after which the GPUs have nothing to do, from which launches limit them."""
NO_PROBE = (
    "covered by no probe",
    "Wrap logging, metrics and copies of the training loop in traincope.span(), and record again.",
)
WHAT_GROWS = (
    "Look for what becomes larger with every step: a metric of all that was seen so far, a list of results, a graph "
    "that is kept. Reset it, or keep sums in its place."
)
BY_MARKS = (
    "work of the GPUs between the phases",
    "Compute losses and metrics in the model's forward, or import a kernel trace, which names this work.",
)
NO_OPERATION = (
    "between the operations of the table",
    "Add the operations that run there to the table: loading, checkpoints, evaluation.",
)
OF_UNKNOWN_TYPES = (
    "between the operations of known types of the table",
    "Give the operations of other types a known one, or add those that run there: loading, checkpoints, evaluation.",
)
NO_OPERATOR = (
    "outside of the traced operators: Python between them, or a wait",
    "Record the run with traincope, which names waits, or trace with_stack=True and look at the gaps in a viewer.",
)
UNKNOWN_IDLE = "idle time of the GPUs of which the traces do not show the cause"
NO_NEXT_LAUNCH = (
    UNKNOWN_IDLE,
    "Trace one step more: the launch of the next work shows what an idle GPU waits for.",
)
NO_LAUNCH = (
    UNKNOWN_IDLE,
    "Trace one step more, with ProfilerActivity.CPU: the launch of the next work shows what an idle GPU waits for.",
)
NO_LINK = (
    UNKNOWN_IDLE,
    "The calls in the traces do not name the works that they launch. Trace with a newer torch, or with its own "
    "profiler.",
)
"""Description of unattributed time, and the advice."""

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
    prices: Prices,
    roots: tuple[Root, ...] = (),
    experts: ExpertLoads | None = None,
    ahead: RunAhead | None = None,
    *,
    faults: Sequence[Fault] = (),
    shortages: Sequence[HostShortage] = (),
    windows: Sequence[SampledWindow] = (),
    calls: Sequence[RankCalls] = (),
) -> list[Finding]:
    """Findings about the counted steps, ordered by their share of step time; `findings.ordered` ranks them by gain.

    `ahead`: the hosts' run-ahead, if marks on the GPUs' streams measured the ledger.
    `faults`: those of GPUs and links count. `windows`: those in which ranks sampled their stacks.
    `calls`: without them, nothing is known of what the messages contain.
    """
    hot = tuple(hot_axes(ledger, comm, stragglers, experts, prices))
    stragglers = _without_hot_experts(stragglers, hot)
    stragglers = _without_short_ranks(stragglers, timeline, shortages)
    links = LinkFaults.among(faults, timeline)
    evidence = _evidence(timeline, stragglers, windows, slow_clocks(timeline, faults), links)
    stragglers = evidence.stragglers
    cause = find_cause(ledger, bubble, roots)
    late: dict[str, set[int]] = defaultdict(set)
    for straggler in stragglers.named:
        for excess in straggler.terms[:MAX_TERMS]:
            late[excess.term].add(straggler.rank)
    stopping = tuple(stop_losses(timeline, ledger, late, prices))
    stopped_by = {loss.term for loss in stopping}
    uncovered = {rank for loss in stopping if loss.term == UNATTRIBUTED for rank in loss.finding.ranks}
    rank_findings = [
        *((loss.share, loss.finding) for loss in stopping),
        *([] if "data_wait" in stopped_by else _data(timeline, ledger, cause, late["data_wait"], prices)),
        *_job_wait(timeline, ledger, prices),
        *_host(timeline, ledger, late, prices, reported=stopped_by),
        *straggler_findings(evidence),
        *sampled_findings(evidence, ledger),
    ]
    reported = {term for term, ranks in late.items() if ranks} | {
        TERM_OF[finding.kind] for _, finding in rank_findings if finding.kind in TERM_OF
    }
    weighted = [
        *rank_findings,
        *idle_findings(timeline, ledger, bubble, cause, prices, reported=cause is not None and cause.term in reported),
        *host_findings(shortages, timeline),
        *without_blame(
            exposed_findings(
                timeline,
                ledger,
                comm,
                stragglers,
                hot,
                prices,
                messages=all_messages(calls),
                reported=sum(loss.waited_share for loss in stopping),
                links=links,
            ),
            shortages if ledger.clock is LedgerClock.HOST else (),
        ),
        *((hot_axis.share, hot_axis.finding) for hot_axis in hot),
        *debugging(timeline, late={straggler.rank for straggler in stragglers.named}),
        *_launch_bound(timeline, ahead),
        *_kernel_wait(ledger),
        *_evaluation(ledger),
        *_unattributed(
            timeline, ledger, late[UNATTRIBUTED] | uncovered, prices, why=_uncovered(timeline, ledger, ahead)
        ),
    ]
    return [finding for _, finding in sorted(weighted, key=lambda pair: -pair[0])]


def _without_short_ranks(stragglers: Stragglers, timeline: Timeline, shortages: Sequence[HostShortage]) -> Stragglers:
    """Leave out the ranks that are late because their host gives several ranks too few cores."""
    short = short_ranks(shortages)
    left_out = {
        each.rank
        for each in stragglers.named
        if each.lacks_core and each.rank in short and not bound_apart(timeline, each.rank, each.peers)
    }
    named = tuple(each for each in stragglers.named if each.rank not in left_out)
    return replace(stragglers, named=named, short=tuple(sorted(left_out)))


def _evidence(
    timeline: Timeline,
    stragglers: Stragglers,
    windows: Sequence[SampledWindow],
    clocks: Mapping[int, str],
    links: LinkFaults,
) -> Evidence:
    """Collect what is known about late ranks. A rank that is only likely to be late is named if its cause is shown."""
    known = Evidence(timeline=timeline, stragglers=stragglers, windows=windows, clocks=clocks, links=links)
    likely = stragglers.likely
    if likely is None or stragglers.named:
        return known
    named = replace(known, stragglers=replace(stragglers, named=(likely,)))
    return named if is_shown(likely, named) else known


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

    def carriers(self, term: str) -> tuple[int, ...]:
        """The fewest of the ranks that have MOST of the term; all of them if these are more than half."""
        ns = {rank.rank: rank.known(term)[0] for rank in self.ledgers}
        by_size = sorted(ns, key=lambda rank: -ns[rank])
        reached = np.cumsum([ns[rank] for rank in by_size])
        count = int(np.searchsorted(reached, MOST * reached[-1])) + 1
        return tuple(sorted(by_size[:count])) if 2 * count <= len(by_size) else self.ranks

    def without(self, term: str) -> Factors:
        """The change that removes the term from these ranks."""
        return Factors({(rank.rank, term): 0.0 for rank in self.ledgers})

    def suffix(self, carriers: tuple[int, ...]) -> str:
        """Say which ranks have the term, if a finding of all ranks would not."""
        if carriers != self.ranks:
            return f", most of it on {numbers(carriers, 'rank')}"
        return " on the other ranks too" if self.ranks else ""


def _without_hot_experts(stragglers: Stragglers, hot: tuple[HotAxis, ...]) -> Stragglers:
    """Stragglers that no hot expert explains."""
    reported = [hot_axis.late for hot_axis in hot]
    return replace(stragglers, named=tuple(straggler for straggler in stragglers.named if straggler not in reported))


def _data(timeline: Timeline, ledger: Ledger, cause: Cause | None, late: Collection[int], prices: Prices) -> Weighted:
    """A step lasts as long as its slowest rank, so the rank that waits most for data decides."""
    others = _OtherRanks.excluding(late, ledger)
    shares = {rank.rank: ledger.share_on((rank,), "data_wait") for rank in others.ledgers}
    largest = max(shares.values(), default=0.0)
    if largest < MIN_SHARE:
        return
    ranks = tuple(rank for rank, share in shares.items() if share >= largest / 2)
    all_ranks = len(ranks) == len(shares)
    consequence = f"; {cause.consequence}" if cause is not None and cause.term == "data_wait" else ""
    why, advice, at_most = _loader(timeline, ledger, ranks)
    most = max(others.ledgers, key=lambda rank: shares[rank.rank])
    why += _stacks(timeline, most, "data_wait") if why == MADE_HERE else ""
    waiting = "training waits" if all_ranks else f"{len(ranks)} of {len(shares)} ranks wait"
    if others.ranks:
        waiting = "all other ranks wait" if all_ranks else f"{len(ranks)} of {len(shares)} other ranks wait"
    mean = sum(shares[rank] for rank in ranks) / len(ranks)
    bound = "" if largest - mean < SAME_SHARE else f" on rank {most.rank}, {percent(mean)} on average,"
    waiting += " up to" if bound else ""
    yield (
        largest,
        priced(
            Finding(
                kind=FindingKind.DATA_BOUND,
                ranks=others.ranks if all_ranks else ranks,
                confidence=MEDIUM,
                evidence=f"{waiting} {percent(largest)} of step time{bound} for the next batch{consequence}"
                + (why and f"; {why}"),
                advice=advice,
            ),
            prices.gain(others.without("data_wait"), share=largest, at_most=at_most),
        ),
    )


def _loader(timeline: Timeline, ledger: Ledger, ranks: Collection[int]) -> tuple[str, str, bool]:
    """Return why these ranks' loaders are slow, empty if unknown; the advice; and whether its gain is a bound."""
    waiting = [rank for rank in timeline.ranks if rank.rank in ranks]
    makes_itself = loads_itself(waiting)
    if makes_iterators(waiting):
        return MADE_ANEW.format(workers="" if makes_itself else WITH_WORKERS), ONE_ITERATOR, True
    if makes_itself:
        return MADE_HERE, GIVE_WORKERS, False
    full = [host for host in full_hosts(timeline, ledger) if {*host.ranks} & {*ranks}]
    if not {*ranks} <= {rank for host in full for rank in host.ranks}:
        return "", MORE_WORKERS, False
    return FULL_HOST.format(busy=full[0].workers_cores, cores=f"{full[0].cores:g}"), CHEAPER_BATCHES, True


def _stacks(timeline: Timeline, rank: RankLedger, term: str) -> str:
    """Say where the rank stood in a term, if its stacks were sampled in steps that have as much of it as the others."""
    sampled = {step for each in timeline.run.ranks if each.rank == rank.rank for step in sampled_steps(each)}
    inside = rank.counted & np.isin(rank.numbers, sorted(sampled))
    ns = rank.terms.get(term)
    if ns is None or not inside.any() or ns[inside].mean() < ALIKE * ns[rank.counted].mean():
        return ""
    line = stood_at(timeline, rank.rank, term, rank.numbers[inside].tolist())
    return f"; the stacks of rank {rank.rank} show it in {line}" if line else ""


def _job_wait(timeline: Timeline, ledger: Ledger, prices: Prices) -> Weighted:
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
        priced(
            Finding(
                kind=FindingKind.JOB_WAIT,
                ranks=() if len(ranks) == len(shares) else ranks,
                confidence=MEDIUM,
                evidence=f"training waits {percent(largest)} of step time for other jobs: {awaited}",
                advice=(
                    "Report the jobs together to see what they did then. Give them more GPUs, or let them work ahead"
                ),
            ),
            prices.gain(Factors({(None, JOB_WAIT): 0.0}), share=largest),
        ),
    )


def _host(
    timeline: Timeline,
    ledger: Ledger,
    late: Mapping[str, Collection[int]],
    prices: Prices,
    *,
    reported: Collection[str],
) -> Weighted:
    for term, (what, _) in HOST_LOSSES.items():
        if term in reported:
            continue
        others = _OtherRanks.excluding(late.get(term, ()), ledger)
        share = others.share(term)
        if share >= MIN_SHARE:
            ranks = others.carriers(term)
            lost = _lost_events(timeline) if term == "launch_gap" else 0
            but = f", or for {count(lost, 'event')} without a valid time, if they are kernels" if lost else ""
            yield (
                share,
                priced(
                    Finding(
                        kind=FindingKind(term),
                        ranks=ranks,
                        confidence=UNKNOWN if lost else MEDIUM,
                        evidence=f"{what} for {percent(share)} of step time{others.suffix(ranks)}{but}",
                        advice=host_advice(term, timeline, ranks),
                    ),
                    prices.gain(others.without(term), share=share, at_most=term in PARTLY_REMOVED),
                ),
            )


def _lost_events(timeline: Timeline) -> int:
    """Events of imported traces that are left out: the time of a kernel among them seems idle."""
    if not timeline.run.info.imported:
        return 0
    return sum(trace.info.num_untimed for of_rank in timeline.traces.ranks.values() for trace in of_rank)


def _launch_bound(timeline: Timeline, ahead: RunAhead | None) -> Weighted:
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
                    f"Launch fewer and larger kernels ({fewer_kernels(timeline)}), and remove calls that wait for the "
                    "GPU (.item(), print)."
                ),
            ),
        )


def _kernel_wait(ledger: Ledger) -> Weighted:
    """A trace shows that the host is not the cause, and not what is."""
    others = _OtherRanks.excluding((), ledger)
    share = others.share("kernel_wait")
    if share >= MIN_SHARE:
        ranks = others.carriers("kernel_wait")
        yield (
            share,
            Finding(
                kind=FindingKind.KERNEL_WAIT,
                ranks=ranks,
                confidence=UNKNOWN,
                evidence=(
                    f"the GPUs idle for {percent(share)} of step time although their next kernel is launched"
                    f"{others.suffix(ranks)}"
                ),
                advice=(
                    "Use fewer and larger kernels: each begins 1 to 2 us after the one before. If single waits are "
                    "longer, trace fewer steps, because a full buffer of the profiler loses kernels, and look for "
                    "other processes on the GPUs and for callbacks of the host in their streams."
                ),
            ),
        )


def _evaluation(ledger: Ledger) -> Weighted:
    """Evaluation lies outside of the steps. Only the user knows how much of it can go."""
    share = ledger.evaluation_ratio
    if share >= LARGE_EVALUATION:
        yield (
            share,
            Finding(
                kind=FindingKind.EVALUATION,
                confidence=MEDIUM,
                evidence=f"evaluation takes {percent(share)} of the run after its start-up, outside the steps",
                advice=(
                    "Evaluate less often, on fewer batches, or on other ranks: this saves at most "
                    f"{percent(share)} of the run."
                ),
                estimated_gain_ratio=share,
                gain_at_most=True,
            ),
        )


def _uncovered(timeline: Timeline, ledger: Ledger, ahead: RunAhead | None) -> tuple[str, str]:
    if ahead is not None:
        return BY_MARKS
    if timeline.of_host_traces:
        return NO_OPERATOR
    if timeline.run.operations is not None:
        return NO_OPERATION if timeline.run.operations.known.all() else OF_UNKNOWN_TYPES
    if not timeline.run.info.imported or ledger.clock is not LedgerClock.DEVICE:
        return NO_PROBE
    traces = (trace for of_rank in timeline.traces.ranks.values() for trace in of_rank)
    unlinked = [traces_host(trace) for trace in traces if not has_launches(trace)]
    if not unlinked:
        return NO_NEXT_LAUNCH
    return NO_LINK if all(unlinked) else NO_LAUNCH


def _unattributed(
    timeline: Timeline, ledger: Ledger, late: Collection[int], prices: Prices, *, why: tuple[str, str]
) -> Weighted:
    others = _OtherRanks.excluding(late, ledger)
    share = others.share(UNATTRIBUTED)
    if share >= MIN_SHARE:
        ranks = others.carriers(UNATTRIBUTED)
        most = max(others.ledgers, key=lambda rank: rank.known(UNATTRIBUTED)[0])
        shown = _stacks(timeline, most, UNATTRIBUTED) if why is NO_PROBE else ""
        grown = _grown(others) if why is NO_PROBE else {}
        if most.rank in grown:
            first_ns, last_ns = grown[most.rank].first_ns, grown[most.rank].last_ns
            shown += f"; it grows with the steps: {duration(first_ns)} in the first tenth of them, "
            shown += f"{duration(last_ns)} in the last"
        finding = Finding(
            kind=FindingKind.UNATTRIBUTED,
            ranks=ranks,
            confidence=MEDIUM,
            evidence=f"{percent(share)} of step time is {why[0]}{others.suffix(ranks)}{shown}",
            advice=WHAT_GROWS if most.rank in grown else DO_LESS if shown else why[1],
        )
        if most.rank in grown:
            finding = _without_growth(finding, others, grown, prices)
        elif shown:
            without = Factors({(rank, UNATTRIBUTED): 0.0 for rank in ranks or [None]})
            finding = priced(finding, prices.gain(without, share=share, at_most=True))
        yield share, finding


def _grown(others: _OtherRanks) -> Mapping[int, Growing]:
    """Ranks whose unattributed time grows, while their forward does not: otherwise the batches become larger."""
    found = {}
    for rank in others.ledgers:
        ns, forward = (rank.terms.get(term) for term in (UNATTRIBUTED, "forward"))
        grows = None if ns is None else growing(ns[rank.counted])
        if grows is not None and (forward is None or growing(forward[rank.counted]) is None):
            found[rank.rank] = grows
    return found


def _without_growth(finding: Finding, others: _OtherRanks, grown: Mapping[int, Growing], prices: Prices) -> Finding:
    """The finding with its gain: at most what these steps take more than the first ones. Some of that may be needed."""
    more_ns = sum(
        rank.known(UNATTRIBUTED)[0] * (1 - grown[rank.rank].first_ratio)
        for rank in others.ledgers
        if rank.rank in grown
    )
    share = more_ns / sum(rank.known(UNATTRIBUTED)[1] for rank in others.ledgers)
    level = Factors({(rank, UNATTRIBUTED): grows.first_ratio for rank, grows in grown.items()})
    gain = replace(prices.gain(level, share=share), at_most=True)
    return priced(finding, gain, shown=True)
