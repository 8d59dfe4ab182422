"""Restarts of a job: why an attempt ended, and when the launcher noticed it."""

import signal
from collections.abc import Iterator, Sequence
from itertools import pairwise

from traincope.analysis.confidence import HIGH
from traincope.analysis.efficiency.goodput import all_attempts, restart_gap_ns
from traincope.analysis.faults.endings import OUT_OF_MEMORY
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.events import CLEAN
from traincope.store import Attempt, LauncherNote
from traincope.store.job.communication_errors import GENERAL_TYPES, TYPES
from traincope.timeline import Timeline
from traincope.units import count, numbers

AT_ONCE_NS = 2_000_000_000
"""Ranks that one signal kills within this time were killed by one stop: torchrun notes whole seconds."""


def restarts(timeline: Timeline) -> Iterator[Fault]:
    """One restart for each attempt after one that did not end well, at its first record."""
    for before, after in pairwise(all_attempts(timeline)):
        if not before.clean:
            yield _restart(before, after, notes=timeline.run.launcher)


def _restart(before: Attempt, after: Attempt, *, notes: Sequence[LauncherNote]) -> Fault:
    lost_ns, noticed = restart_gap_ns(before, after), noticed_after_ns(before, notes)
    until = "the first step" if after.first_step_ns is not None else "its end (it made no step)"
    return Fault(
        kind=FaultKind.RESTART,
        at_ns=after.began_ns,
        what=f"attempt {after.number}: {end_of_attempt(before, notes)[1]}",
        evidence="; ".join(
            [
                *([] if noticed is None else [_noticed(*noticed)]),
                *_unrecorded(before, after),
                f"{lost_ns / 1e9:.1f} s from the last record before to {until}",
                f"attempt {before.number} had made {before.num_steps} steps",
            ]
        ),
        confidence=HIGH,
        lasted_ns=lost_ns,
        end_ns=after.last_ns if after.first_step_ns is None else after.first_step_ns,
    )


def _unrecorded(before: Attempt, after: Attempt) -> Iterator[str]:
    """Attempts between two recorded ones: they ended before anything was recorded."""
    between = range(before.number + 1, after.number)
    if between:
        yield f"that was the end of attempt {before.number}; {numbers(between, 'attempt')} left no record"


def _blamed(before: Attempt, notes: Sequence[LauncherNote]) -> list[LauncherNote]:
    """Notes on the rank that ended an attempt, as the launcher saw it."""
    return [note for note in notes if note.attempt == before.number and note.first and note.rank is not None]


def noticed_after_ns(before: Attempt, notes: Sequence[LauncherNote]) -> tuple[int, int] | None:
    """The rank that ended an attempt, and the time from its last record until the launcher noticed its end.

    None if the launcher noted no exact time, or the rank has no records.
    """
    for note in _blamed(before, notes)[:1]:
        last_ns = 0 if note.rank is None else before.rank_last_ns.get(note.rank, 0)
        if note.rank is not None and note.noticed_wall_ns is not None and last_ns:
            return note.rank, max(note.noticed_wall_ns - last_ns, 0)
    return None


def end_of_attempt(before: Attempt, notes: Sequence[LauncherNote]) -> tuple[FaultKind, str]:
    """Kind of the end of an attempt that did not end well, and its reason.

    A launcher answers the failure of a rank with SIGTERM to the others, also if the failed rank recorded nothing.

    The rank that the launcher saw killed, otherwise the first that raised, otherwise the one that exited. The kind is
    that of the job if the launcher itself was stopped, or if an agent had found that it hung.
    """
    kind, reason, _ = _end_of_ranks(before, notes)
    stopped = any(note.attempt == before.number and note.rank is None and note.exit_code < 0 for note in notes)
    if stopped:
        return FaultKind.STOPPED, reason
    return kind if before.hang is None else FaultKind.HANG, reason


def failed_rank(before: Attempt, notes: Sequence[LauncherNote]) -> int | None:
    """Return the rank whose end is the reason of an attempt's; None if it is not known, or if none failed by itself.

    A stop from outside, as by a scheduler, reaches several ranks: one signal kills them, or they raise the same. An
    error of the communication shows that another rank or the network failed.
    """
    kind, _ = end_of_attempt(before, notes)
    rank = _end_of_ranks(before, notes)[2]
    if rank is None or kind in (FaultKind.STOPPED, FaultKind.HANG):
        return None
    if kind is FaultKind.KILLED:
        (blamed, *_) = _blamed(before, notes)
        alike = (note for note in notes if (note.attempt, note.exit_code) == (before.number, blamed.exit_code))
        at_once = [note for note in alike if abs(note.at_wall_ns - blamed.at_wall_ns) <= AT_ONCE_NS]
        return rank if len(at_once) == 1 else None
    if kind is FaultKind.EXIT:
        return rank
    raised, noted = before.endings[rank], {note.rank for note in notes if note.attempt == before.number}
    is_shared = [*before.endings.values()].count(raised) > 1
    is_silent = any(ending is None and other not in noted for other, ending in before.endings.items())
    in_doubt = raised in TYPES or (raised in GENERAL_TYPES and (is_silent or before.unrecorded))
    return None if is_shared or in_doubt or raised == KeyboardInterrupt.__name__ else rank


def _end_of_ranks(before: Attempt, notes: Sequence[LauncherNote]) -> tuple[FaultKind, str, int | None]:
    blamed = _blamed(before, notes)
    noted = {note.rank for note in notes if note.attempt == before.number}
    unrecorded = [rank for rank in before.unrecorded if rank not in noted]
    for note in blamed:
        if note.exit_code == -signal.SIGTERM and unrecorded:
            left = f"rank {note.rank} got SIGTERM; {numbers(unrecorded, 'rank')} left no record"
            return FaultKind.NO_END, left, None
        if note.exit_code < 0:
            kind = FaultKind.SIGNAL if note.exit_code == -signal.SIGTERM else FaultKind.KILLED
            killed = f"rank {note.rank} was killed (signal {-note.exit_code})"
            return kind, killed, note.rank if kind is FaultKind.KILLED else None
    raised = [rank for rank, ending in before.endings.items() if ending not in (None, CLEAN)]
    if raised:
        first = min(raised, key=lambda rank: before.ended_ns.get(rank, before.last_ns))
        kind = FaultKind.OUT_OF_MEMORY if before.endings[first] in OUT_OF_MEMORY else FaultKind.EXCEPTION
        return kind, f"rank {first} raised {before.endings[first]}", first
    for note in blamed:
        return FaultKind.EXIT, f"rank {note.rank} exited with code {note.exit_code}", note.rank
    silent = count(sum(ending is None for ending in before.endings.values()), "rank")
    return FaultKind.NO_END, f"{silent} recorded no end", None


def _noticed(rank: int, after_ns: int) -> str:
    return f"the launcher noticed it {after_ns / 1e9:.1f} s after the last record of rank {rank}"
