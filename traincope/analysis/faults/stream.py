"""All faults and marks of a run in one stream, by time."""

from collections.abc import Sequence
from dataclasses import replace

from traincope.analysis.faults.anomalies.bad_steps import rollbacks, skipped_steps
from traincope.analysis.faults.anomalies.corruption import StateChecks, corruption_faults
from traincope.analysis.faults.anomalies.data_order import DataOrder, data_faults
from traincope.analysis.faults.anomalies.hardware import hardware_faults
from traincope.analysis.faults.anomalies.links import link_faults
from traincope.analysis.faults.anomalies.logged_values import logged_faults
from traincope.analysis.faults.anomalies.slowness import slow_steps
from traincope.analysis.faults.anomalies.traced_values import first_not_finite
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.hangs.hang import Hang, HangKind
from traincope.analysis.faults.lost_hosts import lost_host_faults
from traincope.analysis.faults.marks import marks
from traincope.analysis.faults.restarts import restarts
from traincope.analysis.ledger.ledger import Ledger
from traincope.timeline import Timeline


def fault_stream(
    timeline: Timeline,
    ledger: Ledger,
    ends: Sequence[Fault],
    hangs: Sequence[Hang] = (),
    *,
    order: DataOrder | None = None,
    state: StateChecks | None = None,
) -> tuple[Fault, ...]:
    """Order faults and marks by time. `ends`: how the ranks ended; they follow all other entries of their instant.

    Ends of a run that hung follow the hang, and are not earlier than its known end.
    """
    stopped = next((hang for hang in hangs if hang.stopped or _explains(hang, ends)), None)
    ends = ends if stopped is None else [_after(end, stopped) for end in ends]
    happened = [
        *restarts(timeline),
        *data_faults(order),
        *corruption_faults(state),
        *logged_faults(timeline),
        *first_not_finite(timeline),
        *skipped_steps(timeline),
        *rollbacks(timeline),
        *slow_steps(timeline, ledger),
        *hardware_faults(timeline),
        *link_faults(timeline),
        *marks(timeline),
        *lost_host_faults(timeline, hangs),
        *map(fault_of, hangs),
    ]
    ordered = [*sorted(happened, key=_when), *sorted(ends, key=lambda end: (end.at_ns, end.follows, end.ranks))]
    return tuple(sorted(ordered, key=lambda fault: fault.at_ns))


def fault_of(hang: Hang) -> Fault:
    """The hang as one entry. `ranks` are the culprits or a lost host's; the job as a whole if they are unknown."""
    return Fault(
        kind=hang.fault_kind,
        at_ns=hang.since_ns,
        ranks=hang.fault_ranks,
        step=hang.step,
        what=hang.evidence,
        confidence=hang.confidence,
        lasted_ns=hang.lasted_ns,
    )


def _explains(hang: Hang, ends: Sequence[Fault]) -> bool:
    """True for a mismatch in the step in which the communication of ranks failed, and nothing else ended them."""
    firsts = [end for end in ends if end.is_fault and not end.follows]
    failed = bool(firsts) and all(end.of_communication for end in firsts)
    return failed and hang.kind is HangKind.MISMATCH and hang.step in {end.step for end in firsts}


def causes(end: Fault, hang: Hang) -> bool:
    """True for an exception of the hang's culprit that the hang hid."""
    return end.hidden_at is not None and not end.of_communication and set(hang.culprits) == set(end.ranks)


def _after(end: Fault, hang: Hang) -> Fault:
    """Mark an end as following a hang, unless it caused it. Only an exception has a time of its own."""
    if not end.is_fault:
        return end
    if causes(end, hang):
        return replace(end, follows=False, at_ns=min(end.at_ns, hang.since_ns))
    timed = end.kind in (FaultKind.EXCEPTION, FaultKind.OUT_OF_MEMORY)
    return replace(end, follows=True, at_ns=end.at_ns if timed else max(end.at_ns, hang.until_ns or hang.since_ns))


def _when(fault: Fault) -> tuple[int, str, tuple[int, ...], str]:
    return fault.at_ns, fault.kind.value, fault.ranks, fault.what
