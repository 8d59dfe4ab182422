"""Ledger terms that cost more than they must, each with what to do: the largest first."""

from dataclasses import replace

from traincope.analysis.bubble import Bubble
from traincope.analysis.comm import AxisOperation
from traincope.analysis.experts import ExpertLoads
from traincope.analysis.findings import MEDIUM, UNKNOWN, WORTH_SAYING, Finding, FindingKind, Weighted, percent
from traincope.analysis.hot_experts import HotAxis, hot_axes
from traincope.analysis.idling import Cause, find_cause, idling
from traincope.analysis.ledger import Ledger
from traincope.analysis.roots import Root
from traincope.analysis.stragglers import Straggler, Stragglers
from traincope.analysis.terms import UNATTRIBUTED
from traincope.topology import PIPELINE_AXIS

LARGE_EVALUATION = 0.1
"""Share of a run from which evaluation is mentioned: it is no loss, for somebody wants it."""
WORTH_A_SPEED = 10_000_000
"""Bytes a second below which a bandwidth says more of the message's size than of the link."""

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
    cause = find_cause(ledger, roots)
    late = {straggler.cause for straggler in stragglers.named}
    own = [
        *(_data(ledger, cause) if "data_wait" not in late else ()),
        *_host(ledger),
        *_straggler(stragglers),
    ]
    told = late | {TERM_OF[finding.kind] for _, finding in own if finding.kind in TERM_OF}
    weighted = [
        *own,
        *idling(ledger, bubble, cause, told=cause is not None and cause.term in told),
        *_exposed(ledger, comm, stragglers, hot),
        *((one.share, one.finding) for one in hot),
        *_evaluation(ledger),
        *(_unattributed(ledger) if UNATTRIBUTED not in late else ()),
    ]
    return [finding for _, finding in sorted(weighted, key=lambda pair: -pair[0])]


def _share(ledger: Ledger, term: str) -> float:
    return ledger.share(term) or 0.0


def _otherwise_late(stragglers: Stragglers, hot: tuple[HotAxis, ...]) -> Stragglers:
    """Those whose lateness no hot expert explains."""
    told = [one.late for one in hot]
    return replace(stragglers, named=tuple(one for one in stragglers.named if one not in told))


def _exposed(
    ledger: Ledger, comm: tuple[AxisOperation, ...], stragglers: Stragglers, hot: tuple[HotAxis, ...]
) -> Weighted:
    """Waiting for a rank that is named is that rank's finding, and not told twice."""
    blamed = {axis for straggler in stragglers.named for axis in straggler.axes} | {a for one in hot for a in one.axes}
    unsplit = sum(int(rank.unsplit_ns[rank.counted].sum()) for rank in ledger.ranks) / ledger.wall_ns
    for term in ledger.order:
        family, _, rest = term.partition("[")
        axis, share = rest.rstrip("]"), _share(ledger, term)
        if share < WORTH_SAYING:
            continue
        if family == "exposed_wait" and axis not in blamed:
            yield share, _wait_finding(axis, share)
        elif family == "exposed_transfer" and unsplit > share / 2:
            yield share, _unsplit_finding(axis, share)
        elif family == "exposed_transfer":
            yield share, _transfer_finding(axis, share, comm)


def _wait_finding(axis: str, share: float) -> Finding:
    return Finding(
        kind=FindingKind.EXPOSED_WAIT,
        confidence=MEDIUM,
        evidence=(
            f"ranks stand still {percent(share)} of a step until the last one joins collectives on {axis}; "
            "no single rank is to blame"
        ),
        advice="give every rank the same work (equal batches and shapes) and its own cores; then look for host noise",
        estimated_gain_ratio=share,
    )


def _unsplit_finding(axis: str, share: float) -> Finding:
    return Finding(
        kind=FindingKind.EXPOSED_COMMUNICATION,
        confidence=UNKNOWN,
        evidence=(
            f"ranks stand still {percent(share)} of a step for {axis}; whether for the wire or for a late rank "
            "cannot be told, for records of their peers are missing"
        ),
        advice="find the missing ranks' records, or why they have none",
    )


def _transfer_finding(axis: str, share: float, comm: tuple[AxisOperation, ...]) -> Finding:
    operations = [row for row in comm if row.axis == axis and (row.bus_bandwidth or 0) >= WORTH_A_SPEED]
    most = max(operations, key=lambda row: row.transfer_ns, default=None)
    speed = (
        "" if most is None else f", mostly {most.operation} at {(most.bus_bandwidth or 0) / 1e9:.2f} GB/s on the bus"
    )
    overlap = (
        "send earlier or in smaller pieces, so that transfers run beside compute"
        if axis == PIPELINE_AXIS
        else "overlap it (prefetch the next layer, larger buckets), send fewer bytes, or use a faster link"
    )
    return Finding(
        kind=FindingKind.EXPOSED_TRANSFER,
        confidence=MEDIUM,
        evidence=f"transfers on {axis} hold up compute for {percent(share)} of a step{speed}",
        advice=overlap,
        estimated_gain_ratio=share,
    )


def _straggler(stragglers: Stragglers) -> Weighted:
    for straggler in stragglers.named:
        yield straggler.caused_share, _straggler_finding(straggler)


CAUSES = {
    "data_wait": (
        "it waits for its data",
        "look at that rank's data: its shard, its file system, its DataLoader workers",
    ),
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


def _data(ledger: Ledger, cause: Cause | None) -> Weighted:
    """A step lasts as long as its slowest rank: the rank that waits most for data decides."""
    shares = {
        rank.rank: (rank.total("data_wait") or 0) / rank.total_wall_ns for rank in ledger.ranks if rank.total_wall_ns
    }
    most = max(shares.values(), default=0.0)
    if most < WORTH_SAYING:
        return
    ranks = tuple(rank for rank, share in shares.items() if share >= most / 2)
    everybody = len(ranks) == len(shares)
    meanwhile = f"; {cause.meanwhile}" if cause is not None and cause.term == "data_wait" else ""
    who = "training waits" if everybody else f"{len(ranks)} of {len(shares)} ranks wait"
    yield (
        most,
        Finding(
            kind=FindingKind.DATA_BOUND,
            ranks=() if everybody else ranks,
            confidence=MEDIUM,
            evidence=f"{who} {percent(most)} of a step for the next batch{meanwhile}",
            advice="give the DataLoader more workers or a deeper prefetch, or prepare the data beforehand",
            estimated_gain_ratio=most,
        ),
    )


def _host(ledger: Ledger) -> Weighted:
    for term, (what, advice) in HOST_LOSSES.items():
        share = _share(ledger, term)
        if share >= WORTH_SAYING:
            yield (
                share,
                Finding(
                    kind=FindingKind(term),
                    confidence=MEDIUM,
                    evidence=f"{what} for {percent(share)} of a step",
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


def _unattributed(ledger: Ledger) -> Weighted:
    share = _share(ledger, UNATTRIBUTED)
    if share >= WORTH_SAYING:
        yield (
            share,
            Finding(
                kind=FindingKind.UNATTRIBUTED,
                confidence=MEDIUM,
                evidence=f"{percent(share)} of a step is in nothing that is watched",
                advice="look at what the loop does beside data, forward, backward and optimizer: logs, metrics, copies",
            ),
        )
