"""How the ranks of a run ended, and which of them was first.

Evidence, the strongest first: what the rank itself wrote (the exception that left its run), the
stacks that a signal found, the exit code that the launcher noted, records that just stop. A launcher
ends the survivors with SIGTERM, so a rank with that is told as the first only where the launcher
says so; where every rank has it, somebody stopped the job.
"""

import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from traincope.analysis.faults import Fault, FaultKind
from traincope.analysis.findings import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.memory import host_share
from traincope.analysis.order import doubt_ns
from traincope.analysis.stacks import fatal_error, place
from traincope.events import CLEAN
from traincope.store import LauncherNote, RankRecords
from traincope.store.segments import own_events
from traincope.timeline import RankTimeline, Timeline

CLEARLY_EARLIER_NS = 10_000_000
"""By how much one rank's records must end before all others' to call it the first."""
OUT_OF_MEMORY = frozenset({"OutOfMemoryError", "MemoryError"})
"""Exceptions of torch and of Python whose type says it; of others the rank wrote down whether they do."""
MEMORY_FULL = 0.8
"""Share of the host's memory from which its killer of processes is thought of; children of ranks are not counted."""
OWN_FAILURES = frozenset({FaultKind.EXCEPTION, FaultKind.OUT_OF_MEMORY, FaultKind.EXIT})
GRACE_NS = 60_000_000_000
"""torchrun waits 30 s for its ranks to end before it kills them, and notes its own end after that."""
NO_RECORD = "it left no record"
NOTED = "noted by the launcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Witness:
    """All that speaks of one rank's end."""

    rank: RankTimeline
    records: RankRecords
    note: LauncherNote | None
    launcher: LauncherNote | None
    """How the launcher itself ended, where no rank can be running any more."""
    memory_ratio: float | None
    """What the ranks of its host held of the host's memory when they last looked."""


def endings(timeline: Timeline) -> tuple[Fault, ...]:
    """One fault a rank that came to no clean end; and one of the job, where that was stopped.

    All but the first are marked as following it; and but those that may have been first themselves, for the
    clocks of their hosts do not tell.
    """
    notes = {note.rank: note for note in timeline.run.launcher if note.attempt == timeline.run.last_attempt}
    ends = [end for witness in _witnesses(timeline, notes) if (end := _end(witness)) is not None]
    ends = [*_settled(ends, timeline=timeline, notes=notes), *_unseen(timeline, notes)]
    stop = _stop(timeline, ends)
    if stop is not None:
        return (stop, *(_following(end, stop) for end in ends))
    first, rivals = _first(ends, notes, timeline)
    if first is None:
        return tuple(ends)
    return tuple(
        _undecided(end) if rivals and end in (first, *rivals) else end if end is first else _following(end, first)
        for end in ends
    )


def first_end(ends: Iterable[Fault]) -> Fault | None:
    """The one that follows no other; None where all is well, or nothing is known."""
    return next((end for end in ends if end.is_fault and not end.follows), None)


def _witnesses(timeline: Timeline, notes: Mapping[int | None, LauncherNote]) -> Iterable[_Witness]:
    records = {rank.rank: rank for rank in timeline.run.ranks}
    shares = host_share(timeline)
    for rank in timeline.ranks:
        yield _Witness(
            rank=rank,
            records=records[rank.rank],
            note=notes.get(rank.rank),
            launcher=notes.get(None),
            memory_ratio=shares.get(rank.rank),
        )


def _end(seen: _Witness) -> Fault | None:
    rank, note = seen.rank, seen.note
    if rank.ending == CLEAN:
        return _after_the_run(seen, note) if note is not None else None
    if rank.ending is not None:
        return _exception(seen, rank.ending)
    if "fatal" in seen.records.info.signals:
        stacks = seen.records.info.signals["fatal"]
        return _fault(seen, FaultKind.SIGNAL, _at(fatal_error(stacks) or "a fatal signal", place(stacks)))
    if seen.records.info.signals:
        name, stacks = next(iter(seen.records.info.signals.items()))
        return _fault(seen, FaultKind.SIGNAL, _at(name, place(stacks)))
    if note is not None:
        return _fault(seen, FaultKind.KILLED if note.exit_code < 0 else FaultKind.EXIT, _exit(note))
    return _fault(seen, FaultKind.KILLED, "ended without a word")


def _after_the_run(seen: _Witness, note: LauncherNote) -> Fault | None:
    """The run saw nothing wrong, but the launcher did; a survivor that it ended itself is no fault."""
    if note.exit_code == -signal.SIGTERM and not note.first:
        return None
    before = "" if seen.records.info.with_process else "ended its run cleanly, then "
    return _fault(seen, FaultKind.EXIT, before + _exit(note))


def _exception(seen: _Witness, name: str) -> Fault:
    at_ns, details = _written(seen, name)
    kinds = {name, str(details.get("handling", ""))}
    short = bool(details.get("out_of_memory"))
    kind = FaultKind.OUT_OF_MEMORY if short or kinds & OUT_OF_MEMORY else FaultKind.EXCEPTION
    what = _raised(name, details.get("at"))
    if "code" in details:
        kind = FaultKind.EXIT if kind is FaultKind.EXCEPTION else kind
        what = _raised(f"exited with code {details['code']}", details.get("at"))
    if "handling" in details:
        what += f", while handling {_raised(str(details['handling']), details.get('handling_at'))}"
    if short:
        what += ", out of memory"
    return replace(_fault(seen, kind, what), at_ns=at_ns)


def _written(seen: _Witness, name: str) -> tuple[int, Mapping[str, object]]:
    """When the exception left the run, and what was written down of it."""
    for event in reversed(own_events(seen.rank.main)):
        details = seen.records.details.get(int(event["group"]), {})
        if seen.rank.name(int(event["name"])) == "exception" and details.get("type") == name:
            return int(event["start_ns"]), details
    return seen.rank.last_ns, {}


def _raised(what: str, where: object) -> str:
    return f"{what} at {where}" if where else what


def _fault(seen: _Witness, kind: FaultKind, what: str) -> Fault:
    return Fault(
        kind=kind,
        at_ns=seen.rank.last_ns,
        ranks=(seen.rank.rank,),
        step=seen.rank.open_step,
        what=what,
        evidence="; ".join(_evidence(seen, kind)),
        confidence=HIGH if seen.note is not None else MEDIUM,
        open_records=seen.rank.open_records,
    )


def _evidence(seen: _Witness, kind: FaultKind) -> Iterable[str]:
    left = seen.rank.ending not in (None, CLEAN)
    if left:
        yield from (f"{name} had come" for name in seen.records.info.signals)
    if seen.note is not None and (left or kind == FaultKind.SIGNAL):
        yield _exit(seen.note)
    if kind == FaultKind.KILLED and seen.note is None and seen.launcher is not None and seen.launcher.exit_code >= 0:
        yield f"the command that launched it exited with code {seen.launcher.exit_code}"
    silent = kind == FaultKind.KILLED and (seen.note is None or seen.note.exit_code == -signal.SIGKILL)
    if silent and seen.memory_ratio is not None and seen.memory_ratio >= MEMORY_FULL:
        yield (
            f"the ranks of its host held {100 * seen.memory_ratio:.0f} % of the memory there: perhaps the kernel's "
            "out-of-memory killer (its log tells)"
        )


def _at(what: str, where: str | None) -> str:
    return what if where is None else f"{what} in {where}"


def _exit(note: LauncherNote) -> str:
    how = f"was killed (signal {-note.exit_code})" if note.exit_code < 0 else f"exited with code {note.exit_code}"
    return f"{how}, {NOTED}"


def _settled(ends: list[Fault], *, timeline: Timeline, notes: Mapping[int | None, LauncherNote]) -> list[Fault]:
    """Where all that is known is that no rank has written an end, perhaps none has come to one.

    Then only a rank whose records stop clearly before the others' is told as dead; and one that was alone
    with a launcher that has ended.
    """
    silent = all(end.kind == FaultKind.KILLED for end in ends) and len(ends) == len(timeline.ranks)
    over = bool(notes) and len(ends) == 1
    if not ends or over or any(rank is not None for rank in notes) or not silent:
        return ends
    lead_ns = lead(timeline, timeline.ranks)
    first = min(ends, key=lambda end: end.at_ns) if lead_ns is not None and lead_ns >= CLEARLY_EARLIER_NS else None
    return [end if end is first else _no_end(end) for end in ends]


def lead(timeline: Timeline, ranks: Iterable[RankTimeline]) -> int | None:
    """By how much at least the records of one end before those of all others; None where it is the only one.

    Not positive where the clocks of their hosts do not tell.
    """
    first, *others = sorted(ranks, key=lambda rank: rank.last_ns)
    return min(
        (other.last_ns - first.last_ns - doubt_ns(timeline, first.rank, other.rank) for other in others), default=None
    )


def _no_end(end: Fault) -> Fault:
    return replace(end, kind=FaultKind.NO_END, what="no end is recorded", evidence="", confidence=UNKNOWN)


def _unseen(timeline: Timeline, notes: Mapping[int | None, LauncherNote]) -> Iterable[Fault]:
    """Ranks of which only the launcher knows."""
    for rank in timeline.run.missing:
        note = notes.get(rank)
        if note is not None:
            yield Fault(
                kind=FaultKind.KILLED if note.exit_code < 0 else FaultKind.EXIT,
                at_ns=note.at_wall_ns,
                ranks=(rank,),
                what=_exit(note),
                evidence=NO_RECORD,
            )


def _stop(timeline: Timeline, ends: list[Fault]) -> Fault | None:
    """The launcher's own end, which it notes once its ranks have ended, or a signal that came to every rank.

    Not where a rank had failed by itself well before: then somebody stopped what was left.
    """
    for note in timeline.run.launcher:
        if note.attempt == timeline.run.last_attempt and note.rank is None and note.exit_code < 0:
            if any(_failed_before(end, note.at_wall_ns) for end in ends):
                return None
            name = _signal_name(-note.exit_code)
            began_ns = min((end.at_ns for end in ends), default=note.at_wall_ns)
            return Fault(kind=FaultKind.STOPPED, at_ns=min(note.at_wall_ns, began_ns), what=f"the launcher got {name}")
    told = [end for end in ends if _from_outside(end)]
    if not told or len(told) < len(timeline.ranks):
        return None
    name = told[0].what.partition(" ")[0]
    return Fault(
        kind=FaultKind.STOPPED,
        at_ns=min(end.at_ns for end in told),
        what=f"every rank got {name}",
        evidence="none had ended before: a scheduler, a limit of time, or somebody's kill",
    )


def _failed_before(end: Fault, noted_ns: int) -> bool:
    """By an error of its own, earlier than a launcher takes to end its ranks once it was told to stop."""
    return end.kind in OWN_FAILURES and "KeyboardInterrupt" not in end.what and noted_ns - end.at_ns > GRACE_NS


def _signal_name(number: int) -> str:
    names = {known.value: known.name for known in signal.Signals}
    return names.get(number, f"signal {number}")


def _from_outside(end: Fault) -> bool:
    """A signal that some process has sent; such are not the rank's own doing."""
    return end.kind == FaultKind.SIGNAL and end.what.startswith("SIG")


def _first(
    ends: list[Fault], notes: Mapping[int | None, LauncherNote], timeline: Timeline
) -> tuple[Fault | None, list[Fault]]:
    """By the launcher, where it saw a rank killed or knows alone; else by time, as the ranks wrote it.

    Of ranks that exited in the same second the launcher cannot tell which was first; those it ended itself
    came after. Beside it those that may have been first as well, by their hosts' clocks.
    """
    told = [end for end in ends if end.is_fault]
    of_ranks = [note for note in notes.values() if note.rank is not None]
    unasked = [note for note in of_ranks if note.exit_code != -signal.SIGTERM]
    sure = {
        note.rank
        for note in of_ranks
        if note.first and (note.exit_code < 0 or (unasked == [note] and not _left_unnoted(timeline, told, notes, note)))
    }
    noted = [end for end in told if end.ranks[0] in sure]
    own = [end for end in told if not _from_outside(end) and not _unseen_by_us(end)]
    first = min(noted or own or told, key=lambda end: end.at_ns, default=None)
    if first is None or noted:
        return first, []
    others = [end for end in own or told if end is not first]
    return first, [end for end in others if end.at_ns - first.at_ns < doubt_ns(timeline, first.ranks[0], end.ranks[0])]


def _left_unnoted(
    timeline: Timeline, told: Iterable[Fault], notes: Mapping[int | None, LauncherNote], beside: LauncherNote
) -> bool:
    """Whether a rank of the same host ended without a word and without a note, as after `os._exit(0)`."""
    hosts = {rank.rank: rank.info.host for rank in timeline.run.ranks}
    silent = [end.ranks[0] for end in told if end.kind == FaultKind.KILLED and end.ranks[0] not in notes]
    return any(hosts[rank] == hosts.get(beside.rank or 0) for rank in silent)


def _undecided(end: Fault) -> Fault:
    doubt = "whether it was the first its host's clock does not tell"
    return replace(end, evidence="; ".join([*([end.evidence] if end.evidence else []), doubt]), confidence=UNKNOWN)


def _unseen_by_us(end: Fault) -> bool:
    return end.evidence == NO_RECORD


def _following(end: Fault, first: Fault) -> Fault:
    """When it got its signal, or was killed, nobody wrote down: not before the first."""
    if not end.is_fault:
        return end
    timed = end.kind in (FaultKind.EXCEPTION, FaultKind.OUT_OF_MEMORY)
    return replace(end, follows=True, at_ns=end.at_ns if timed else max(end.at_ns, first.at_ns))
