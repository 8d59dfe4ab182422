"""All faults and marks of a run in one stream, by time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from traincope.analysis.confidence import HIGH
from traincope.analysis.efficiency.goodput import all_attempts, restart_gap_ns
from traincope.analysis.faults.anomalies.bad_steps import rollbacks, skipped_steps
from traincope.analysis.faults.anomalies.corruption import StateChecks, corruption_faults
from traincope.analysis.faults.anomalies.data_order import DataOrder, data_faults
from traincope.analysis.faults.anomalies.hardware import hardware_faults
from traincope.analysis.faults.anomalies.logged_values import logged_faults
from traincope.analysis.faults.anomalies.slowness import slow_steps
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.hangs.hang import Hang
from traincope.analysis.faults.lost_hosts import lost_host_faults
from traincope.analysis.faults.marks import marks
from traincope.analysis.ledger.ledger import Ledger
from traincope.events import CLEAN
from traincope.store import Attempt, LauncherNote
from traincope.timeline import Timeline
from traincope.units import count


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
    stopped = next((hang for hang in hangs if hang.until_ns is not None), None)
    ends = ends if stopped is None else [_after(end, stopped) for end in ends]
    happened = [
        *restarts(timeline),
        *data_faults(order),
        *corruption_faults(state),
        *logged_faults(timeline),
        *skipped_steps(timeline),
        *rollbacks(timeline),
        *slow_steps(timeline, ledger),
        *hardware_faults(timeline),
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


def _after(end: Fault, hang: Hang) -> Fault:
    """Mark an end as following a hang. Only an exception has a time of its own."""
    if not end.is_fault:
        return end
    timed = end.kind in (FaultKind.EXCEPTION, FaultKind.OUT_OF_MEMORY)
    return replace(end, follows=True, at_ns=end.at_ns if timed else max(end.at_ns, hang.until_ns or hang.since_ns))


def _when(fault: Fault) -> tuple[int, str, tuple[int, ...], str]:
    return fault.at_ns, fault.kind.value, fault.ranks, fault.what


def restarts(timeline: Timeline) -> Iterator[Fault]:
    """One restart for each attempt after one that did not end well, at its first record."""
    for before, after in pairwise(all_attempts(timeline)):
        if not before.clean:
            yield _restart(before, after, notes=timeline.run.launcher)


def _restart(before: Attempt, after: Attempt, *, notes: Sequence[LauncherNote]) -> Fault:
    lost_ns = restart_gap_ns(before, after)
    until = "the first step" if after.first_step_ns is not None else "its end (it made no step)"
    return Fault(
        kind=FaultKind.RESTART,
        at_ns=after.began_ns,
        what=f"attempt {after.number}: {_reason(before, notes)}",
        evidence="; ".join(
            [
                *_noticed(before, notes),
                f"{lost_ns / 1e9:.1f} s from the last record before to {until}",
                f"attempt {before.number} had made {before.num_steps} steps",
            ]
        ),
        confidence=HIGH,
        lasted_ns=lost_ns,
    )


def _blamed(before: Attempt, notes: Sequence[LauncherNote]) -> list[LauncherNote]:
    """Notes on the rank that ended an attempt, as the launcher saw it."""
    return [note for note in notes if note.attempt == before.number and note.first and note.rank is not None]


def _noticed(before: Attempt, notes: Sequence[LauncherNote]) -> Iterator[str]:
    """Time from the last record of the rank that ended an attempt until the launcher noticed its end."""
    for note in _blamed(before, notes)[:1]:
        last_ns = 0 if note.rank is None else before.rank_last_ns.get(note.rank, 0)
        if note.noticed_wall_ns is not None and last_ns:
            after_ns = max(note.noticed_wall_ns - last_ns, 0)
            yield f"the launcher noticed it {after_ns / 1e9:.1f} s after the last record of rank {note.rank}"


def _reason(before: Attempt, notes: Sequence[LauncherNote]) -> str:
    """Reason why an attempt ended.

    The rank that the launcher saw killed, otherwise the first that raised, otherwise the one that exited.
    """
    blamed = _blamed(before, notes)
    for note in blamed:
        if note.exit_code < 0:
            return f"rank {note.rank} was killed (signal {-note.exit_code})"
    raised = [rank for rank, ending in before.endings.items() if ending not in (None, CLEAN)]
    if raised:
        first = min(raised, key=lambda rank: before.ended_ns.get(rank, before.last_ns))
        return f"rank {first} raised {before.endings[first]}"
    for note in blamed:
        return f"rank {note.rank} exited with code {note.exit_code}"
    return f"{count(sum(ending is None for ending in before.endings.values()), 'rank')} recorded no end"
