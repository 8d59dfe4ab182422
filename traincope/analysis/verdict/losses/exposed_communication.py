"""Findings about exposed communication: waiting for ranks, transfers, or ambiguous waits."""

from collections.abc import Mapping

from traincope.analysis.attribution.stalls import WHY, AmbiguousWait
from traincope.analysis.attribution.terms import exposed_transfer
from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.analysis.confidence import MEDIUM, UNKNOWN
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.stragglers.stragglers import Stragglers, why_none
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, Weighted, percent, with_gain
from traincope.analysis.verdict.losses.hot_experts import HotAxis
from traincope.timeline import LedgerClock
from traincope.topology import PIPELINE_AXIS
from traincope.units import numbers

MIN_SPEED = 10_000_000
"""Bytes per second below which a bandwidth depends on the message's size more than on the link."""


PREFETCH = (
    "Overlap these transfers with compute (prefetch the next layer, larger buckets), or send bf16 instead of fp32"
)
OVERLAP = {
    PIPELINE_AXIS: "Send activations earlier or in smaller pieces, so that transfers overlap compute",
    "tp": "Use fewer tensor-parallel ranks, or overlap these transfers with compute (asynchronous tensor parallelism)",
}
"""Axis -> advice for its transfers; PREFETCH for any other axis."""


def exposed_findings(
    ledger: Ledger, comm: tuple[AxisOperation, ...], stragglers: Stragglers, hot: tuple[HotAxis, ...]
) -> Weighted:
    """Findings by axis. Waiting for a rank that another finding names is not repeated."""
    blamed = {axis for straggler in stragglers.named for axis in straggler.axes} | {
        a for hot_axis in hot for a in hot_axis.axes
    }
    ambiguous_waits = ledger.ambiguous_waits()
    for term in ledger.order:
        family, _, rest = term.partition("[")
        axis, share = rest.rstrip("]"), ledger.share(term) or 0.0
        if share < MIN_SHARE:
            continue
        if family == "exposed_wait" and axis not in blamed:
            yield share, _wait_finding(axis, share, sampling_error(ledger, term), stragglers)
        elif family == "exposed_transfer" and (why := _mostly_ambiguous(ledger, term, ambiguous_waits)) is not None:
            yield share, _ambiguous_finding(ledger, axis, share, why, sampling_error(ledger, term))
        elif family == "exposed_transfer":
            yield share, _transfer_finding(axis, share, comm, sampling_error(ledger, term))


def _wait_finding(axis: str, share: float, error: str, stragglers: Stragglers) -> Finding:
    return Finding(
        kind=FindingKind.EXPOSED_WAIT,
        confidence=MEDIUM,
        evidence=(
            f"ranks wait {percent(share)} of step time{error} for the last rank to join collectives on {axis}; "
            f"{_who(stragglers)}"
        ),
        advice=with_gain(
            "Give every rank batches of equal size and shape, and CPU cores of its own (taskset, numactl)", share
        ),
        estimated_gain_ratio=share,
    )


def _who(stragglers: Stragglers) -> str:
    """Return which ranks are the cause of such waits. No straggler explains most of them."""
    if stragglers.named:
        ranks = numbers([straggler.rank for straggler in stragglers.named], "rank")
        return f"most of it is not for {ranks}"
    return why_none(stragglers)


def _mostly_ambiguous(
    ledger: Ledger, term: str, ambiguous_waits: Mapping[tuple[str, AmbiguousWait], int]
) -> AmbiguousWait | None:
    """The main reason why most of an axis' transfer may be waiting; None if most of it is certainly transfer."""
    causes = {cause: ns for (axis, cause), ns in ambiguous_waits.items() if exposed_transfer(axis) == term}
    if 2 * sum(causes.values()) <= (ledger.total(term) or 0):
        return None
    return max(causes, key=lambda cause: causes[cause])


TRACE_ALL = "Trace and import all ranks, with a torch that names the process groups of kernels (2.4 or newer)."
REMEDIES = {
    AmbiguousWait.RECORDS_MISSING: "Copy the missing ranks' records into the run directory, and report again.",
    AmbiguousWait.NEVER_WAITED_FOR: "Call work.wait() for every transfer before the step ends.",
    AmbiguousWait.CLOCKS: "Compare only ranks of one host: RECORDING shows the error between the hosts' clocks.",
    AmbiguousWait.NOT_REPLAYED: "Copy the missing stages' records into the run directory, and report again.",
    AmbiguousWait.DEVICE_MARKS: TRACE_ALL,
}


def _ambiguous_finding(ledger: Ledger, axis: str, share: float, why: AmbiguousWait, error: str) -> Finding:
    choices = "the transfer or a late rank"
    if why is AmbiguousWait.NOT_REPLAYED:
        choices = "the transfer, the schedule or a late stage"
    return Finding(
        kind=FindingKind.EXPOSED_COMMUNICATION,
        confidence=UNKNOWN,
        evidence=(f"ranks wait {percent(share)} of step time{error} on {axis}; {choices} may be the cause: {WHY[why]}"),
        advice=TRACE_ALL if ledger.clock is LedgerClock.DEVICE else REMEDIES[why],
    )


def _transfer_finding(axis: str, share: float, comm: tuple[AxisOperation, ...], error: str) -> Finding:
    return Finding(
        kind=FindingKind.EXPOSED_TRANSFER,
        confidence=MEDIUM,
        evidence=f"transfers on {axis} delay compute by {percent(share)} of step time{error}{_mostly(axis, comm)}",
        advice=with_gain(OVERLAP.get(axis, PREFETCH), share),
        estimated_gain_ratio=share,
    )


def _mostly(axis: str, comm: tuple[AxisOperation, ...]) -> str:
    """The operation with most exposed transfer. Communication hidden behind compute delays nothing."""
    operations = [row for row in comm if row.axis == axis and row.exposed_ns > row.wait_ns]
    largest = max(operations, key=lambda row: row.exposed_ns - row.wait_ns, default=None)
    if largest is None:
        return ""
    speed = largest.bus_bandwidth or 0
    return f", mostly {largest.operation}" + (f" at {speed / 1e9:.2f} GB/s on the bus" if speed >= MIN_SPEED else "")


def sampling_error(ledger: Ledger, name: str) -> str:
    """Return ` (11.0 to 13.4 %, from 96 of 500 steps)` for a term or a sum of terms that only windows show.

    It is empty if all steps record the term.
    """
    run = ledger.run
    estimate = None if run is None else run.estimates.get(name, run.sums.get(name))
    if run is None or estimate is None or estimate.steps == run.steps:
        return ""
    source = f"from {estimate.steps:,} of {run.steps:,} steps"
    if estimate.low is None or estimate.high is None:
        return f" ({source}; sampling error unknown: {estimate.reason})"
    return f" ({100 * estimate.low:.1f} to {100 * estimate.high:.1f} %, {source})"
