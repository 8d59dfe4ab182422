"""Ledger terms that cost more than they must, each with what to do: the largest first."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from traincope.analysis.bubble import Bubble
from traincope.analysis.comm import AxisOperation
from traincope.analysis.experts import ExpertLoads
from traincope.analysis.exposed import exposed
from traincope.analysis.findings import MEDIUM, WORTH_SAYING, Finding, FindingKind, Weighted, percent
from traincope.analysis.hot_experts import HotAxis, hot_axes
from traincope.analysis.idling import Cause, find_cause, idling
from traincope.analysis.ledger import Ledger, RankLedger
from traincope.analysis.roots import Root
from traincope.analysis.stragglers import Straggler, Stragglers
from traincope.analysis.terms import UNATTRIBUTED

LARGE_EVALUATION = 0.1
"""Share of a run from which evaluation is mentioned: it is no loss, for somebody wants it."""

HOST_LOSSES = {
    "checkpoint_stall": ("checkpoints hold up training", "save asynchronously, or less often"),
    "gc": ("Python's garbage collector stops the training thread", "call gc.disable() and collect between steps"),
    "compile": ("compilation stops training", "keep shapes constant, so that nothing is compiled twice"),
    "sync": ("the host waits for the device", "read values (.item(), print) less often"),
}
"""Term -> (what it is, what to do), for terms with nothing more to say."""
TERM_OF = {FindingKind.DATA_BOUND: "data_wait"} | {FindingKind(term): term for term in HOST_LOSSES}
"""Finding -> the ledger term it tells of."""


def losses(
    ledger: Ledger,
    bubble: Bubble | None,
    comm: tuple[AxisOperation, ...],
    stragglers: Stragglers,
    roots: tuple[Root, ...] = (),
    experts: ExpertLoads | None = None,
) -> list[Finding]:
    """Findings about the counted steps, ordered by their share of step time."""
    hot = tuple(hot_axes(ledger, comm, stragglers, experts))
    stragglers = _otherwise_late(stragglers, hot)
    cause = find_cause(ledger, bubble, roots)
    late = {straggler.cause: straggler.rank for straggler in stragglers.named}
    own = [*_data(ledger, cause, late.get("data_wait")), *_host(ledger, late), *_straggler(stragglers)]
    told = late.keys() | {TERM_OF[finding.kind] for _, finding in own if finding.kind in TERM_OF}
    weighted = [
        *own,
        *idling(bubble, cause, told=cause is not None and cause.term in told),
        *exposed(ledger, comm, stragglers, hot),
        *((one.share, one.finding) for one in hot),
        *_evaluation(ledger),
        *_unattributed(ledger, late.get(UNATTRIBUTED)),
    ]
    return [finding for _, finding in sorted(weighted, key=lambda pair: -pair[0])]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Others:
    """The ranks of which a term is still to be told: all but one that is named for it already."""

    ledgers: tuple[RankLedger, ...]
    ranks: tuple[int, ...]
    """As a finding names them: empty for all of the run."""

    @classmethod
    def than(cls, late: int | None, ledger: Ledger) -> "_Others":
        ledgers = tuple(rank for rank in ledger.ranks if rank.rank != late)
        return cls(ledgers=ledgers, ranks=() if late is None else tuple(rank.rank for rank in ledgers))

    def share(self, term: str) -> float:
        """Of their step time."""
        wall_ns = sum(rank.total_wall_ns for rank in self.ledgers)
        return sum(rank.total(term) or 0 for rank in self.ledgers) / wall_ns if wall_ns else 0.0

    @property
    def too(self) -> str:
        return " on the other ranks too" if self.ranks else ""


def _otherwise_late(stragglers: Stragglers, hot: tuple[HotAxis, ...]) -> Stragglers:
    """Those whose lateness no hot expert explains."""
    told = [one.late for one in hot]
    return replace(stragglers, named=tuple(one for one in stragglers.named if one not in told))


def _straggler(stragglers: Stragglers) -> Weighted:
    for straggler in stragglers.named:
        yield straggler.caused_share, _straggler_finding(straggler)


CAUSES = {
    "data_wait": (
        "it waits for its data",
        "look at that rank's data: its shard, its file system, its DataLoader workers",
    ),
    "gc": ("it collects garbage", HOST_LOSSES["gc"][1]),
    "checkpoint_stall": ("it saves or loads checkpoints", HOST_LOSSES["checkpoint_stall"][1]),
    "compile": ("it compiles", HOST_LOSSES["compile"][1]),
    UNATTRIBUTED: (
        "it is in nothing that is watched",
        "look at what only that rank does: logging, checkpoints, metrics; then at other jobs on its host",
    ),
}
"""Ledger term of a straggler's longer work -> (what it does, what to do); compute is anything else."""
SLOW_HOST = "compare that rank's host with the others (clocks, throttling, other jobs); replace it if it stays slow"


def _straggler_finding(straggler: Straggler) -> Finding:
    does, advice = CAUSES.get(straggler.cause or "", (f"most of that is {straggler.cause}", SLOW_HOST))
    longer = f"; its own work takes {1 + straggler.excess_ratio:.2f} times its peers': {does}"
    return Finding(
        kind=FindingKind.STRAGGLER,
        ranks=(straggler.rank,),
        confidence=straggler.confidence,
        evidence=(
            f"rank {straggler.rank} arrives last: the ranks that wait for it lose "
            f"{percent(straggler.caused_share)} of a step{longer if straggler.cause else ''}"
        ),
        advice=advice if straggler.cause else SLOW_HOST,
        estimated_gain_ratio=straggler.gain_ratio,
    )


def _data(ledger: Ledger, cause: Cause | None, late: int | None) -> Weighted:
    """A step lasts as long as its slowest rank: the rank that waits most for data decides."""
    others = _Others.than(late, ledger)
    shares = {
        rank.rank: (rank.total("data_wait") or 0) / rank.total_wall_ns for rank in others.ledgers if rank.total_wall_ns
    }
    most = max(shares.values(), default=0.0)
    if most < WORTH_SAYING:
        return
    ranks = tuple(rank for rank, share in shares.items() if share >= most / 2)
    everybody = len(ranks) == len(shares)
    meanwhile = f"; {cause.meanwhile}" if cause is not None and cause.term == "data_wait" else ""
    who = "training waits" if everybody else f"{len(ranks)} of {len(shares)} ranks wait"
    if others.ranks:
        who = "all other ranks wait" if everybody else f"{len(ranks)} of {len(shares)} other ranks wait"
    yield (
        most,
        Finding(
            kind=FindingKind.DATA_BOUND,
            ranks=others.ranks if everybody else ranks,
            confidence=MEDIUM,
            evidence=f"{who} {percent(most)} of a step for the next batch{meanwhile}",
            advice="give the DataLoader more workers or a deeper prefetch, or prepare the data beforehand",
            estimated_gain_ratio=most,
        ),
    )


def _host(ledger: Ledger, late: Mapping[str | None, int]) -> Weighted:
    for term, (what, advice) in HOST_LOSSES.items():
        others = _Others.than(late.get(term), ledger)
        share = others.share(term)
        if share >= WORTH_SAYING:
            yield (
                share,
                Finding(
                    kind=FindingKind(term),
                    ranks=others.ranks,
                    confidence=MEDIUM,
                    evidence=f"{what} for {percent(share)} of a step{others.too}",
                    advice=advice,
                    estimated_gain_ratio=share,
                ),
            )


def _evaluation(ledger: Ledger) -> Weighted:
    """Beside the steps; what fewer of them would save is for its user to say."""
    share = ledger.evaluation_ratio
    if share >= LARGE_EVALUATION:
        yield (
            share,
            Finding(
                kind=FindingKind.EVALUATION,
                confidence=MEDIUM,
                evidence=f"evaluation takes {percent(share)} of the run, beside the steps",
                advice="evaluate less often, on fewer batches, or on other ranks",
            ),
        )


def _unattributed(ledger: Ledger, late: int | None) -> Weighted:
    others = _Others.than(late, ledger)
    share = others.share(UNATTRIBUTED)
    if share >= WORTH_SAYING:
        yield (
            share,
            Finding(
                kind=FindingKind.UNATTRIBUTED,
                ranks=others.ranks,
                confidence=MEDIUM,
                evidence=f"{percent(share)} of a step is in nothing that is watched{others.too}",
                advice="look at what the loop does beside data, forward, backward and optimizer: logs, metrics, copies",
            ),
        )
