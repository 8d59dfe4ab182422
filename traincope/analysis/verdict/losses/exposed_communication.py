"""Findings about exposed communication: waiting for ranks, transfers, or ambiguous waits."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from traincope.analysis.attribution.stalls import WHY, AmbiguousWait
from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.analysis.communication.call_sites import Messages
from traincope.analysis.confidence import MEDIUM, UNKNOWN
from traincope.analysis.efficiency.counted_flops import counted_flops
from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.replaying.prices import Prices
from traincope.analysis.replaying.replay import Factors
from traincope.analysis.stragglers.stragglers import Stragglers, why_none
from traincope.analysis.verdict.findings import MIN_SHARE, Finding, FindingKind, Weighted, percent, priced
from traincope.analysis.verdict.losses.hot_experts import HotAxis
from traincope.analysis.verdict.losses.object_collectives import object_collectives, without_objects
from traincope.analysis.verdict.losses.sent_messages import Purpose, Sent, sent_on
from traincope.analysis.verdict.losses.slow_links import LinkFaults
from traincope.events import Kind, Phase
from traincope.timeline import LedgerClock, Timeline
from traincope.timeline.device.collectives import UNKNOWN_AXIS
from traincope.topology import PIPELINE_AXIS
from traincope.units import numbers

MIN_SPEED = 10_000_000
"""Bytes per second below which a bandwidth depends on the message's size more than on the link."""

SHOWN_UNSPLIT = 0.005
"""Share of step time below which time that may be transfer or wait is not mentioned."""

MOSTLY = 0.5
"""Share of an axis' exposed time from which one purpose decides the advice."""

PREFETCH = "Overlap these transfers with compute (prefetch the next layer, larger buckets)"
BALANCE = "Give every rank batches of equal size and shape, and CPU cores of its own (taskset, numactl)"
ALONE = "Leave these collectives out: their groups have one member, so nothing is sent"
OVERLAP = {
    PIPELINE_AXIS: "Send activations earlier or in smaller pieces, so that transfers overlap compute",
    "tp": "Use fewer tensor-parallel ranks, or overlap these transfers with compute (asynchronous tensor parallelism)",
}
"""Axis -> advice for its transfers; PREFETCH for any other axis."""


def exposed_findings(
    timeline: Timeline,
    ledger: Ledger,
    comm: tuple[AxisOperation, ...],
    stragglers: Stragglers,
    hot: tuple[HotAxis, ...],
    prices: Prices,
    *,
    messages: Sequence[Messages] = (),
    reported: float = 0.0,
    links: LinkFaults,
) -> Weighted:
    """Findings by axis, and one for objects. Waiting for a rank that another finding names is not repeated.

    `reported`: share of step time of waits that findings about stops contain. It is taken from all axes in proportion.
    """
    blamed = {axis for straggler in stragglers.named for axis in straggler.axes} | {
        a for hot_axis in hot for a in hot_axis.axes
    }
    objects = object_collectives(ledger, messages, prices, blamed=blamed)
    if objects.finding is not None:
        yield sum(objects.shares.values()), objects.finding
    products, closures = _products(timeline), _has_closures(timeline)
    ambiguous_waits = ledger.ambiguous_waits()
    waits = sum(ledger.share(term) or 0.0 for term in ledger.order if term.startswith("exposed_wait["))
    rest = max(1 - reported / waits, 0.0) if waits else 1.0
    for term in ledger.order:
        family, _, bracketed = term.partition("[")
        axis, whole, of_objects = bracketed.rstrip("]"), ledger.share(term) or 0.0, objects.shares.get(term, 0.0)
        share = whole - of_objects
        if share < MIN_SHARE:
            continue
        kept = of_objects / whole
        others = tuple(each for each in messages if not objects.shares or each.phase is not Phase.OBJECTS)
        sent = sent_on(axis, others, rank_steps=ledger.rank_steps, products=products, closures=closures)
        if family == "exposed_wait":
            if axis not in blamed and rest * share >= MIN_SHARE:
                if _is_between_jobs(timeline, axis):
                    found = _wait_for_a_job(axis, rest * share)
                else:
                    found = _wait_finding(axis, rest * share, stragglers, sent, others=reported > 0)
                found = links.explain(found, axis)
                gain = prices.gain(Factors({(None, term): kept}), share=share, at_most=True)
                yield rest * share, priced(found, replace(gain, ratio=rest * gain.ratio), shown=found.avoidable)
        elif family == "exposed_transfer":
            causes = {why: ns for (on, why), ns in ambiguous_waits.items() if on == axis}
            certain = share * (1 - sum(causes.values()) / max(ledger.total(term) or 0, 1))
            if causes and (2 * certain < share or certain < MIN_SHARE):
                why = max(causes, key=lambda cause: causes[cause])
                yield share, links.explain(_ambiguous_finding(ledger, axis, share, why), axis)
            else:
                is_alone = _is_alone(axis, comm)
                removed = Factors({(None, term): kept}, keeps_ambiguous=True)
                gain = prices.gain(removed, share=certain, at_most=not is_alone)
                rows = comm if term not in objects.shares else without_objects(comm, others)
                found = _transfer_finding(axis, certain, rows, sent, is_alone=is_alone, unsplit=share - certain)
                found = links.explain(found, axis)
                yield certain, priced(found, gain, shown=found.avoidable)


def _has_closures(timeline: Timeline) -> bool:
    """Return whether most backwards run inside the optimizer's step, which evaluates a closure, as L-BFGS does.

    The first rank with backwards shows it: all ranks have one optimizer.
    """
    for rank in timeline.ranks:
        phases = rank.closed(rank.of_kind(Kind.PHASE))
        backwards = phases["start_ns"][phases["phase"] == Phase.BACKWARD]
        if len(backwards):
            updates = phases[phases["phase"] == Phase.OPTIMIZER]
            updates = updates[np.argsort(updates["start_ns"])]
            last_end = np.maximum.accumulate(np.append(0, updates["end_ns"]))
            inside = last_end[np.searchsorted(updates["start_ns"], backwards, side="right")] > backwards
            return 2 * int(inside.sum()) > len(backwards)
    return False


def _products(timeline: Timeline) -> tuple[str, ...]:
    """Return the dtype of most of the counted FLOPs; nothing if no rank counted."""
    for flops in (counted.executed() for rank in timeline.ranks if (counted := counted_flops(rank)) is not None):
        return tuple(dtype for dtype in flops if flops[dtype] == max(flops.values()))
    return ()


def _largest(sent: Sequence[Sent], ns: dict[Purpose, int]) -> Sent | None:
    """Return the messages with most of the time `ns`, if they are more than the others and explain it."""
    total, largest = sum(ns.values()), max(sent, key=lambda each: ns[each.purpose], default=None)
    if largest is None or not total or not largest.what or ns[largest.purpose] < MOSTLY * total:
        return None
    return largest


def _wait_finding(axis: str, share: float, stragglers: Stragglers, sent: Sequence[Sent], *, others: bool) -> Finding:
    """`others`: findings about stops contain a part of the axis' wait."""
    most = _largest(sent, {each.purpose: each.wait_ns for each in sent})
    avoidable = most if most is not None and most.avoidable else None
    where = "" if avoidable is None else f"; most of it is where {avoidable.what}"
    also = " for other reasons" if others else ""
    return Finding(
        kind=FindingKind.EXPOSED_WAIT,
        confidence=MEDIUM,
        evidence=(
            f"ranks wait {percent(share)} of step time for the last rank to join collectives on {axis}{also}; "
            f"{_who(stragglers)}{where}"
        ),
        advice=BALANCE if avoidable is None else f"{avoidable.advice}. {BALANCE}",
        avoidable=avoidable is not None,
    )


def _is_between_jobs(timeline: Timeline, axis: str) -> bool:
    """Return whether all groups of the axis have members in other jobs."""
    groups = [group for rank in timeline.ranks for group in rank.groups if group.axis == axis]
    return bool(groups) and all(group.between_jobs for group in groups)


def _wait_for_a_job(axis: str, share: float) -> Finding:
    return Finding(
        kind=FindingKind.EXPOSED_WAIT,
        confidence=MEDIUM,
        evidence=(
            f"ranks wait {percent(share)} of step time for another job to join collectives on {axis}: its part of them "
            "is the shortest"
        ),
        advice=(
            "Look at the job that joins last, named under JOBS THAT WORK TOGETHER: its steps are longer. Give all "
            "groups equal work and equal hosts, or let them exchange less often"
        ),
    )


def _who(stragglers: Stragglers) -> str:
    """Return which ranks are the cause of such waits. No straggler explains most of them."""
    if stragglers.named:
        ranks = numbers([straggler.rank for straggler in stragglers.named], "rank")
        return f"most of it is not for {ranks}"
    return why_none(stragglers)


TRACE_ALL = "Trace all ranks in the same steps, and import the traces together."
NUMBERED_ALONE = (
    "Compare each of these kernels with its shortest time: the rest is mostly wait. Collectives are matched only in "
    "steps that the profiler marks, and messages only in groups of two ranks."
)
WITHOUT_GROUPS = (
    "Compare each of these kernels with its shortest time: the rest is mostly wait. They name no process group, so the "
    "kernels of other ranks cannot be matched. torch 2.4 or newer names the groups of NCCL's."
)
WITHOUT_A_GPU = (
    "Record the run with traincope: it sees when each rank joins. The profiler names no process group for a backend "
    "without a GPU."
)
REMEDIES = {
    AmbiguousWait.RECORDS_MISSING: (
        "Copy the missing ranks' records into the run directory, and report again. If the peers are another replica or "
        "job, record it too: the others wait for the one whose steps compute longest."
    ),
    AmbiguousWait.OTHER_JOBS: (
        "Record the other jobs too, and report them together: traincope report RUN RUN splits wait from transfer. Send "
        "less only if it shows that the transfer takes the time."
    ),
    AmbiguousWait.NOT_MATCHED: WITHOUT_A_GPU,
    AmbiguousWait.NEVER_WAITED_FOR: "Call work.wait() for every transfer before the step ends.",
    AmbiguousWait.CLOCKS: "Compare only ranks of one host: RECORDING shows the error between the hosts' clocks.",
    AmbiguousWait.NOT_REPLAYED: "Copy the missing stages' records into the run directory, and report again.",
    AmbiguousWait.DEVICE_MARKS: TRACE_ALL,
}


def _ambiguous_finding(ledger: Ledger, axis: str, share: float, why: AmbiguousWait) -> Finding:
    if why is AmbiguousWait.OTHER_JOBS:
        return Finding(
            kind=FindingKind.EXPOSED_COMMUNICATION,
            confidence=UNKNOWN,
            evidence=(
                f"ranks spend {percent(share)} of step time in collectives with other jobs on {axis}; they may be "
                f"waiting for a late one: {WHY[why]}"
            ),
            advice=REMEDIES[why],
        )
    choices = "the transfer or a late rank"
    if why is AmbiguousWait.NOT_REPLAYED:
        choices = "the transfer, the schedule or a late stage"
    where = "in collectives of unknown groups" if axis == UNKNOWN_AXIS else f"on {axis}"
    return Finding(
        kind=FindingKind.EXPOSED_COMMUNICATION,
        confidence=UNKNOWN,
        evidence=f"ranks wait {percent(share)} of step time {where}; {choices} may be the cause: {WHY[why]}",
        advice=_how_to_find_out(ledger, axis, why),
    )


def _how_to_find_out(ledger: Ledger, axis: str, why: AmbiguousWait) -> str:
    if ledger.clock is not LedgerClock.DEVICE:
        return REMEDIES[why]
    if axis == UNKNOWN_AXIS:
        return WITHOUT_GROUPS
    return NUMBERED_ALONE if why is AmbiguousWait.NOT_MATCHED else TRACE_ALL


def _transfer_finding(
    axis: str,
    share: float,
    comm: tuple[AxisOperation, ...],
    sent: Sequence[Sent],
    *,
    is_alone: bool,
    unsplit: float,
) -> Finding:
    """`unsplit`: share of step time that may be transfer or wait. It is no part of the gain."""
    more = f"; another {percent(unsplit)} is transfer or wait" if unsplit >= SHOWN_UNSPLIT else ""
    what = "collectives of groups with one member" if is_alone else "transfers"
    most = None if is_alone else _largest(sent, {each.purpose: each.transfer_ns for each in sent})
    content = "" if most is None else f": {most.what}"
    advice = OVERLAP.get(axis, PREFETCH) if most is None else most.advice
    return Finding(
        kind=FindingKind.EXPOSED_TRANSFER,
        confidence=MEDIUM,
        evidence=(
            f"{what} on {axis} delay compute by {percent(share)} of step time{_mostly(axis, comm)}{content}{more}"
        ),
        advice=ALONE if is_alone else advice,
        avoidable=is_alone or (most is not None and most.avoidable),
    )


def _is_alone(axis: str, comm: tuple[AxisOperation, ...]) -> bool:
    """Return whether all groups of the axis have one member."""
    groups = [row.largest_group for row in comm if row.axis == axis]
    return bool(groups) and set(groups) == {1}


def _mostly(axis: str, comm: tuple[AxisOperation, ...]) -> str:
    """The operation with most exposed transfer. Communication hidden behind compute delays nothing."""
    operations = [row for row in comm if row.axis == axis and row.exposed_transfer_ns > 0]
    largest = max(operations, key=lambda row: row.exposed_transfer_ns, default=None)
    if largest is None:
        return ""
    speed = largest.bus_bandwidth or 0
    return f", mostly {largest.operation}" + (f" at {speed / 1e9:.2f} GB/s on the bus" if speed >= MIN_SPEED else "")
