"""What is to be said of exposed communication: waiting for others, the wire, or that nothing tells which."""

from collections.abc import Mapping

from traincope.analysis.comm import AxisOperation
from traincope.analysis.findings import MEDIUM, UNKNOWN, WORTH_SAYING, Finding, FindingKind, Weighted, percent
from traincope.analysis.hot_experts import HotAxis
from traincope.analysis.ledger import Ledger
from traincope.analysis.stragglers import Stragglers
from traincope.analysis.terms import exposed_transfer
from traincope.analysis.unsplit import WHY, Unsplit
from traincope.topology import PIPELINE_AXIS

WORTH_A_SPEED = 10_000_000
"""Bytes a second below which a bandwidth says more of the message's size than of the link."""


def exposed(
    ledger: Ledger, comm: tuple[AxisOperation, ...], stragglers: Stragglers, hot: tuple[HotAxis, ...]
) -> Weighted:
    """Waiting for a rank that is named is that rank's finding, and not told twice."""
    blamed = {axis for straggler in stragglers.named for axis in straggler.axes} | {a for one in hot for a in one.axes}
    unsplit = ledger.unsplit()
    for term in ledger.order:
        family, _, rest = term.partition("[")
        axis, share = rest.rstrip("]"), ledger.share(term) or 0.0
        if share < WORTH_SAYING:
            continue
        if family == "exposed_wait" and axis not in blamed:
            yield share, _wait_finding(axis, share)
        elif family == "exposed_transfer" and (why := _mostly_unsplit(ledger, term, unsplit)) is not None:
            yield share, _unsplit_finding(axis, share, why)
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


def _mostly_unsplit(ledger: Ledger, term: str, unsplit: Mapping[tuple[str, Unsplit], int]) -> Unsplit | None:
    """The main reason why most of an axis' transfer may be waiting; None where most of it is transfer."""
    causes = {cause: ns for (axis, cause), ns in unsplit.items() if exposed_transfer(axis) == term}
    if 2 * sum(causes.values()) <= (ledger.total(term) or 0):
        return None
    return max(causes, key=lambda cause: causes[cause])


REMEDIES = {
    Unsplit.RECORDS_MISSING: "find the missing ranks' records, or why they have none",
    Unsplit.NEVER_WAITED_FOR: "wait for what is sent (work.wait()), at the latest when the step ends",
    Unsplit.CLOCKS: "compare ranks of one host, which share a clock; how well hosts' clocks agree stands below",
    Unsplit.NOT_REPLAYED: "find the records of the missing stages, or why they have none",
}


def _unsplit_finding(axis: str, share: float, why: Unsplit) -> Finding:
    choices = "for the wire or for a late rank"
    if why is Unsplit.NOT_REPLAYED:
        choices = "for the wire, for the schedule or for a late stage"
    return Finding(
        kind=FindingKind.EXPOSED_COMMUNICATION,
        confidence=UNKNOWN,
        evidence=(
            f"ranks stand still {percent(share)} of a step for {axis}; whether {choices} cannot be told, for {WHY[why]}"
        ),
        advice=REMEDIES[why],
    )


def _transfer_finding(axis: str, share: float, comm: tuple[AxisOperation, ...]) -> Finding:
    overlap = (
        "send earlier or in smaller pieces, so that transfers run beside compute"
        if axis == PIPELINE_AXIS
        else "overlap it (prefetch the next layer, larger buckets), send fewer bytes, or use a faster link"
    )
    return Finding(
        kind=FindingKind.EXPOSED_TRANSFER,
        confidence=MEDIUM,
        evidence=f"transfers on {axis} hold up compute for {percent(share)} of a step{_mostly(axis, comm)}",
        advice=overlap,
        estimated_gain_ratio=share,
    )


def _mostly(axis: str, comm: tuple[AxisOperation, ...]) -> str:
    """The operation that most of it is for: what is hidden beside compute holds up nobody."""
    operations = [row for row in comm if row.axis == axis and row.exposed_ns > row.wait_ns]
    most = max(operations, key=lambda row: row.exposed_ns - row.wait_ns, default=None)
    if most is None:
        return ""
    speed = most.bus_bandwidth or 0
    return f", mostly {most.operation}" + (f" at {speed / 1e9:.2f} GB/s on the bus" if speed >= WORTH_A_SPEED else "")
