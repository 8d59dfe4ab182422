"""Endings of ranks, and the decision which rank ended first.

Evidence, the strongest first: what the rank itself wrote (the exception that left its run), the stacks that a signal
dumped, the exit code that the launcher noted, a process that no longer exists. Records that stop are not evidence: a
rank that waits writes none. The end of such a rank is unknown. The first of the other ranks is called the first only if
the unknown rank cannot have ended before it. A launcher ends the survivors with SIGTERM, so a rank with SIGTERM is
named as the first only if the launcher notes it. If every rank got SIGTERM, the job was stopped from outside, unless
the first was clearly earlier and the others of its host got the signal when its launcher noticed its end. Exceptions
are ordered by the instants at which they left the ranks' runs. Ranks that raise the same one at the same line within a
second share it: none of them is the first.
"""

import signal
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.exceptions import Chain, chain_of, exception_of, exit_of
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.stacks import (
    Place,
    call_site,
    fatal_error,
    interrupted_thread,
    place_of,
    shows_all_threads,
    training_thread,
)
from traincope.analysis.memory.uses import host_share
from traincope.events import CLEAN, GROUP_DESTROYED, OPEN, SIGNAL_HANDLED, Flag, Kind
from traincope.store import LauncherNote, RankRecords
from traincope.store.job.process import CRASHES
from traincope.store.segments.segments import recorder_events
from traincope.timeline import RankTimeline, Timeline, error_between_ns
from traincope.units import numbers

OUT_OF_MEMORY = frozenset({"OutOfMemoryError", "MemoryError"})
"""Exceptions of torch and Python whose type means out of memory. For other exceptions the rank notes it."""
MEMORY_FULL = 0.8
"""Share of the host's memory above which the kernel's out-of-memory killer is suspected. Child processes of ranks are
not counted."""
OWN_FAILURES = frozenset({FaultKind.EXCEPTION, FaultKind.OUT_OF_MEMORY, FaultKind.EXIT})
GRACE_NS = 60_000_000_000
"""torchrun waits 30 s for its ranks to end before it kills them, and notes its own end after that."""
SHARED_NS = 1_000_000_000
"""Ranks that raise the same exception at the same line within this time have one cause."""
STEPS_TO_STOP = 2
"""Largest number of steps from a signal to the end of a training that ends because of it."""
STOP_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"})
"""Signals by which a person, a launcher or a scheduler stops a process."""
FATAL = "fatal"
"""Name of the stacks at a crash among those at signals."""
ABORTED, CRASHED = CRASHES[signal.SIGABRT], CRASHES[signal.SIGSEGV]
RECEIVED = "it had received"
HIDDEN = "while it handled that, its communication failed, which hid it:"
TERMINATED = ("Terminated", "Interrupt", "exited unexpectedly")
"""Words in the error of a rank whose data worker ended by the stop's signal."""
SILENT = frozenset({FaultKind.KILLED, FaultKind.NO_END})
"""Ends of ranks that wrote nothing about them."""
INNERMOST = 3
"""Number of innermost open intervals that are named."""
NO_RECORD, REFUSED_RECORD = "it left no record", "its record may not be read"
NOTED = "noted by the launcher"
OUT_OF_MEMORY_KILLER = "the kernel's out-of-memory killer"
SECOND_NS = 1_000_000_000
TERMINATED_APART_NS = 15_000_000
"""Least time between a signal to one rank and those to the others that are the launcher's answer to its end."""
FILE_TIME_ERROR_NS = 10_000_000
"""Files have the time of the kernel's last tick."""
MAX_WALL_CLOCK_ERROR_NS = 1_000_000_000
"""Assumed largest difference of hosts' wall clocks that nothing else ties together. Any cluster keeps them closer, but
no record proves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EndEvidence:
    """All evidence of one rank's end."""

    rank: RankTimeline
    records: RankRecords
    note: LauncherNote | None
    launcher: LauncherNote | None
    """End of the launcher itself."""
    memory_ratio: float | None
    """Share of the host's memory that its ranks held at their last sample."""


def endings(timeline: Timeline) -> tuple[Fault, ...]:
    """One fault per rank without a recorded clean end, and one for the job if it was stopped.

    All ends but the first are marked as following it. Ends that may have been first are not marked, if host clocks or
    missing evidence leave that open.
    """
    notes = {note.rank: note for note in timeline.run.launcher if note.attempt == timeline.run.last_attempt}
    evidence = tuple(_end_evidence(timeline, notes))
    if not timeline.run.missing and all(map(_left_well, evidence)):
        asked = _ended_as_asked(timeline, evidence)
        if asked is not None or _left_together(evidence):
            return () if asked is None else (asked,)
    ends = [end for each in evidence if (end := _end(each)) is not None]
    ends = list(_with_common_handlers([*ends, *_ends_without_record(timeline, notes)]))
    stop = _stopped_job(timeline, ends)
    if stop is not None:
        return (stop, *(_following(end, stop) for end in ends))
    first, rivals = _first(ends, notes, timeline)
    if first is None:
        return tuple(ends)
    shared = [first] if rivals else shared_with(first, ends)
    return tuple(
        _undecided(end) if rivals and end in (first, *rivals) else end if end in shared else _following(end, first)
        for end in ends
    )


def first_end(ends: Iterable[Fault]) -> Fault | None:
    """The end that follows no other; None if all is well or the first is unknown."""
    return next((end for end in ends if end.is_fault and not end.follows), None)


def shared_with(first: Fault, ends: Iterable[Fault]) -> list[Fault]:
    """The ends by the same exception at the same line as the first one, raised within a second, with the first."""
    return [end for end in ends if end is first or _is_shared(end, first)]


def _is_shared(end: Fault, first: Fault) -> bool:
    same = (end.kind, end.raised, end.traceback[-1:]) == (first.kind, first.raised, first.traceback[-1:])
    by_itself = not end.of_communication and not is_external_signal(end)
    return same and bool(first.traceback) and by_itself and abs(end.at_ns - first.at_ns) <= SHARED_NS


NOTED_SIGNALS = {
    f"was killed (signal {number.value})": number.name for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
}
"""Words of a launcher for an end by a stop signal that it never sends by itself -> name of the signal."""


def is_external_signal(end: Fault) -> bool:
    """True if a signal from another process ended the rank, or its handler in the training did."""
    return end.handler in STOP_SIGNALS or (end.kind == FaultKind.SIGNAL and end.what.startswith("SIG"))


def is_terminated(end: Fault) -> bool:
    """True if SIGTERM ended the rank: its launcher may have sent it because another rank had failed."""
    name = signal.SIGTERM.name
    return end.handler == name or end.what.startswith((name, f"was killed (signal {signal.SIGTERM.value})"))


def unrecorded(timeline: Timeline, ends: Iterable[Fault]) -> tuple[int, ...]:
    """Ranks that left neither records nor an end that the launcher noted. They may have failed before all others."""
    known = {rank for end in ends for rank in end.ranks}
    return tuple(rank for rank in timeline.run.missing if rank not in known and rank not in timeline.run.refused)


def _with_common_handlers(ends: Sequence[Fault]) -> Iterator[Fault]:
    """These ends. If several ranks handled the same exception when their communication failed, and another rank failed
    by itself, that rank is the cause: what they handled is a path that their program takes.
    """
    others = any(_is_own(end) and end.hidden_at is None for end in ends)
    hidden = Counter((end.raised, end.traceback[-1:]) for end in ends if end.hidden_at is not None)
    for end in ends:
        common = end.hidden_at is not None and hidden[end.raised, end.traceback[-1:]] > 1
        yield replace(end, of_communication=True) if common and others else end


def _is_own(end: Fault) -> bool:
    """True for a failure of the rank itself, as far as its end shows."""
    return end.is_fault and not end.of_communication and not is_external_signal(end)


def by_kernel(end: Fault) -> bool:
    """True if the kernel's out-of-memory killer is suspected to have ended the rank."""
    return end.kind == FaultKind.KILLED and OUT_OF_MEMORY_KILLER in end.evidence


def exception_message(timeline: Timeline, rank: int) -> str:
    """Return the messages of the exception that left a rank's run, and of the one that counts. Empty without one."""
    records = {each.rank: each for each in timeline.run.ranks}
    found = next((each for each in timeline.ranks if each.rank == rank), None)
    ended = None if found is None or found.ending in (None, CLEAN) else exception_of(found, records[rank])
    return "" if ended is None else " ".join({each.message: None for each in (ended[1].last, ended[1].counted)}).strip()


def is_end_unknown(end: Fault) -> bool:
    """True if only the last record is known, not when or whether the rank ended after it."""
    return end.kind in SILENT and end.confidence != HIGH and not _has_no_record(end)


def possible_earlier_ends(timeline: Timeline, first: Fault, ends: Iterable[Fault]) -> list[Fault]:
    """Find the ranks without a known end that may have ended before the first known end."""
    running = {rank.rank for rank in timeline.run.ranks if rank.running}
    unknown = [end for end in ends if end.kind == FaultKind.NO_END and end.ranks[0] not in running]
    return [end for end in unknown if is_external_signal(first) or _may_precede(timeline, end, first)]


def last_activity(rank: RankTimeline) -> str:
    """The innermost open intervals, outermost first."""
    inside = [record for record in rank.open_records if record.in_thread]
    names = [record.what if record.axis is None else f"{record.what} on {record.axis}" for record in inside]
    return " > ".join(names[-INNERMOST:]) or "nothing that a probe covers"


def _end_evidence(timeline: Timeline, notes: Mapping[int | None, LauncherNote]) -> Iterable[_EndEvidence]:
    records = {rank.rank: rank for rank in timeline.run.ranks}
    shares = host_share(timeline)
    for rank in timeline.ranks:
        yield _EndEvidence(
            rank=rank,
            records=records[rank.rank],
            note=notes.get(rank.rank),
            launcher=notes.get(None),
            memory_ratio=shares.get(rank.rank),
        )


def _end(record: _EndEvidence) -> Fault | None:
    rank, note = record.rank, record.note
    if rank.ending == CLEAN:
        return _end_after_clean_run(record, note) if note is not None else None
    if rank.ending is not None:
        return _exception(record, rank.ending)
    signals, after_group = record.records.info.signals, note is None and _destroyed_its_group(record)
    if after_group and FATAL not in signals and record.launcher is not None and record.launcher.exit_code == 0:
        return None  # Ray ends its workers so, with a signal or without
    if FATAL in signals and not _ended_in_its_dump(signals):
        return _fatal(record, fatal_error(signals[FATAL]), signals[FATAL])
    left = exit_of(rank, record.records)
    if left is not None:
        return replace(_raised(record, *left), kind=FaultKind.EXIT, confidence=HIGH)
    if signals:
        name, stacks = min(signals.items(), key=lambda signal: not shows_all_threads(signal[1]))
        return _fault(record, FaultKind.SIGNAL, _at(name, _place(stacks)))
    if note is not None and -note.exit_code in CRASHES:
        return _fatal(record, CRASHES[signal.Signals(-note.exit_code)])
    if note is not None:
        return _fault(record, FaultKind.KILLED if note.exit_code < 0 else FaultKind.EXIT, _exit(note))
    if after_group:
        what = "no end is recorded; its process group was destroyed before"
        return replace(_fault(record, FaultKind.NO_END, what), confidence=UNKNOWN)
    if record.records.running is False:
        return _fault(record, FaultKind.KILLED, "ended without a record of its end")
    return replace(
        _fault(record, FaultKind.NO_END, f"no end is recorded; last heard of in {last_activity(rank)}"),
        confidence=UNKNOWN,
    )


def _left_together(evidence: Sequence[_EndEvidence]) -> bool:
    """True if the ranks left at the same place of the training: as planned."""
    last = [_last_step(each.rank) for each in evidence]
    return max(last, default=0) - min(last, default=0) <= 1


def _last_step(rank: RankTimeline) -> int:
    return rank.open_step or (rank.steps[-1].number if rank.steps else 0)


def _ended_as_asked(timeline: Timeline, evidence: Sequence[_EndEvidence]) -> Fault | None:
    """The stop of a job whose ranks all left well, soon after a signal that a handler of the training took."""
    handled = sorted((at_ns, each.rank.rank, name) for each in evidence for at_ns, name in _handled_signals(each))
    last = max(map(_last_step, (each.rank for each in evidence)), default=0)
    asking = [signal for signal in handled if last - _step_at(timeline, *signal[:2]) <= STEPS_TO_STOP]
    if not asking:
        return None
    at_ns, first, name = asking[0]
    ranks = tuple(sorted({rank for _, rank, each in asking if each == name}))
    who = "every rank" if len(ranks) == len(evidence) else numbers(ranks, "rank")
    return Fault(
        kind=FaultKind.STOPPED,
        at_ns=at_ns,
        step=_step_at(timeline, at_ns, first) or None,
        what=f"{who} got {name} in step {_step_at(timeline, at_ns, first)}",
        evidence=f"a handler of the training took it, and all ranks ended by themselves after step {last}, as asked",
        confidence=HIGH,
        handler=name,
    )


def _handled_signals(record: _EndEvidence) -> Iterator[tuple[int, str]]:
    """Time and name of each signal that a handler of the training took."""
    for each in record.rank.threads.values():
        for event in recorder_events(each):
            if record.rank.name(int(event["name"])) == SIGNAL_HANDLED:
                details = record.records.details.get(int(event["group"]), {})
                yield int(event["start_ns"]), str(details.get("signal"))


def _step_at(timeline: Timeline, at_ns: int, rank: int) -> int:
    """Number of the rank's last step that had begun; 0 before the first."""
    steps = next(each.steps for each in timeline.ranks if each.rank == rank)
    begun = [step.number for step in steps if step.start_ns <= at_ns]
    return max(begun, default=0)


def _left_well(record: _EndEvidence) -> bool:
    """True for a clean end, and for a call with exit code 0 that handled nothing."""
    left = exit_of(record.rank, record.records)
    if record.note is not None or left is None:
        return record.note is None and record.rank.ending == CLEAN
    (last, *behind) = left[1].raised
    return last.code == 0 and not last.handler and not behind


def _destroyed_its_group(record: _EndEvidence) -> bool:
    """Return whether the training ended with its default process group. Any thread may have destroyed that."""
    rank = record.rank
    events = (event for records in rank.threads.values() for event in recorder_events(records))
    at_ns = [int(event["start_ns"]) for event in events if rank.name(int(event["name"])) == GROUP_DESTROYED]
    last_step_ns = rank.steps[-1].end_ns if rank.steps else 0
    in_training = rank.open_step is not None or bool(rank.open_records)
    return bool(at_ns) and not in_training and last_step_ns <= max(at_ns)


def _ended_in_its_dump(signals: Mapping[str, str]) -> bool:
    """True if a signal ended the process, and reading the frames of running threads crashed before that."""
    deadly = [stacks for name, stacks in signals.items() if name != FATAL and shows_all_threads(stacks)]
    return bool(deadly) and fatal_error(signals[FATAL]) == CRASHED


def _fatal(record: _EndEvidence, name: str | None, stacks: str = "") -> Fault:
    """An abort while the training's thread communicated is the communication's own: of gloo, or of NCCL's watchdog. So
    is one whose place is not known, because it mostly is, and then another rank is its cause.

    `name`: words of `faulthandler` for the signal.
    """
    place, frames = place_of(training_thread(stacks)), interrupted_thread(stacks)
    unknown = place is None and record.rank.in_communication is not False
    site = call_site(frames) or (frames[0].site if frames else "")
    called = f", called at {site}" if frames and site != frames[0].site else ""
    numbers_of = {words: number.name for number, words in CRASHES.items()}
    what = f"{name} ({numbers_of[name]})" if name in numbers_of else name or "a fatal signal"
    return replace(
        _fault(record, FaultKind.SIGNAL, _at(what, _place(stacks)) + called),
        of_communication=name == ABORTED and (unknown or place in (Place.COMMUNICATION, Place.BACKWARD)),
        site=site,
    )


def _end_after_clean_run(record: _EndEvidence, note: LauncherNote) -> Fault | None:
    """Fault of a rank whose run ended cleanly but whose process did not.

    A survivor that the launcher ended is not a fault.
    """
    rank, stopped = record.rank, record.launcher is not None and record.launcher.exit_code < 0
    if note.exit_code == -signal.SIGTERM and (stopped or not note.first):
        return None
    left = exit_of(rank, record.records)
    if left is not None and left[1].last.code == note.exit_code:
        return replace(_raised(record, *left), step=rank.steps[-1].number if rank.steps else None)
    before = "" if record.records.info.with_process else "ended its run cleanly, then "
    return _fault(record, FaultKind.EXIT, before + _exit(note))


def _exception(record: _EndEvidence, name: str) -> Fault:
    ended = exception_of(record.rank, record.records)
    return _raised(record, *((record.rank.last_ns, chain_of({"type": name})) if ended is None else ended))


def _raised(record: _EndEvidence, at_ns: int, chain: Chain) -> Fault:
    """End by an exception or an exit. If a failure of the communication took the place of the exception that counts,
    that was raised before this communication began.
    """
    last, counted, hidden_by = chain.last, chain.counted, chain.hidden_by
    short = last.out_of_memory or counted.out_of_memory
    kind = FaultKind.OUT_OF_MEMORY if short or {last.kind, counted.kind} & OUT_OF_MEMORY else FaultKind.EXCEPTION
    what = str(counted)
    if last.code is not None:
        kind = FaultKind.EXIT if kind is FaultKind.EXCEPTION else kind
        what = str(last) if last is counted else f"{last}, while handling {counted}"
    what += chain.behind + (", out of memory" if short else "")
    fault = _fault(record, kind, what)
    hiding = "" if hidden_by is None else f"{HIDDEN} {hidden_by}"
    return replace(
        fault,
        at_ns=at_ns if hidden_by is None else min(at_ns, _failed_call_ns(record.rank)),
        evidence="; ".join(part for part in (hiding, fault.evidence, counted.callers) if part),
        traceback=counted.traceback,
        raised=counted.kind,
        message=counted.message,
        site=counted.site,
        handler=last.handler or counted.handler,
        hidden_at=None if hidden_by is None else hidden_by.site,
        of_communication=counted.of_communication,
        failures=chain.failures,
        num_failed=chain.num_failed,
    )


def _failed_call_ns(rank: RankTimeline) -> int:
    """Begin of the rank's last collective that failed or did not end; `last_ns` without one."""
    calls = rank.of_kind(Kind.COLLECTIVE)
    failed = calls[(calls["flags"] & Flag.RAISED > 0) | (calls["end_ns"] == OPEN)]
    return int(failed["start_ns"].max(initial=0)) or rank.last_ns


def _fault(record: _EndEvidence, kind: FaultKind, what: str) -> Fault:
    return Fault(
        kind=kind,
        at_ns=record.rank.last_ns,
        ranks=(record.rank.rank,),
        step=record.rank.open_step,
        what=what,
        evidence="; ".join(_evidence(record, kind)),
        confidence=HIGH if record.note is not None else MEDIUM,
        open_records=record.rank.open_records,
    )


def _evidence(record: _EndEvidence, kind: FaultKind) -> Iterable[str]:
    by_exception = record.rank.ending not in (None, CLEAN)
    if by_exception:
        yield from (f"{RECEIVED} {name}" for name in record.records.info.signals)
    if record.note is not None and (by_exception or kind == FaultKind.SIGNAL):
        yield _exit(record.note)
    if record.note is None and kind in SILENT and record.records.running is not None:
        yield "its process ran when this was read" if record.records.running else "its process no longer exists"
    if record.note is None and kind in SILENT and record.launcher is not None and record.launcher.exit_code >= 0:
        yield f"the command that launched it exited with code {record.launcher.exit_code}"
    silent = kind == FaultKind.KILLED and (record.note is None or record.note.exit_code == -signal.SIGKILL)
    if silent and record.memory_ratio is not None and record.memory_ratio >= MEMORY_FULL:
        yield (
            f"the ranks of its host held {100 * record.memory_ratio:.0f} % of its memory: perhaps "
            f"{OUT_OF_MEMORY_KILLER} ended it (see the kernel's log)"
        )


def _place(stacks: str) -> str | None:
    """The innermost frame, e.g. "all_reduce (distributed_c10d.py:3112)"; None without a frame."""
    return next(map(str, interrupted_thread(stacks)), None)


def _at(what: str, where: str | None) -> str:
    return what if where is None else f"{what} in {where}"


def _exit(note: LauncherNote) -> str:
    return f"{note.how}, {NOTED}"


def _ends_without_record(timeline: Timeline, notes: Mapping[int | None, LauncherNote]) -> Iterable[Fault]:
    """Faults of ranks that only the launcher knows."""
    for rank in timeline.run.missing:
        note = notes.get(rank)
        if note is not None:
            yield Fault(
                kind=FaultKind.KILLED if note.exit_code < 0 else FaultKind.EXIT,
                at_ns=note.at_wall_ns,
                ranks=(rank,),
                what=_exit(note),
                evidence=REFUSED_RECORD if rank in timeline.run.refused else NO_RECORD,
            )


def _stopped_job(timeline: Timeline, ends: list[Fault]) -> Fault | None:
    """The stop of the job: the launcher's own end, which it notes after its ranks', or a signal to every rank.

    None if a rank had failed by itself well before: then the stop only ended what was left.
    """
    for note in timeline.run.launcher:
        if note.attempt == timeline.run.last_attempt and note.rank is None and note.exit_code < 0:
            if any(_failed_before(end, note.at_wall_ns) for end in ends):
                return None
            name = _signal_name(-note.exit_code)
            began_ns = min((end.at_ns for end in ends), default=note.at_wall_ns)
            return Fault(kind=FaultKind.STOPPED, at_ns=min(note.at_wall_ns, began_ns), what=f"the launcher got {name}")
    names = [(end, stop) for end in ends if (stop := _stop_signal(end)) is not None]
    signalled = [end for end, _ in names]
    reached = {rank for end in signalled for rank in end.ranks}
    if not reached or not {rank.rank for rank in timeline.ranks} <= reached:
        return None
    noted = {stop for end, stop in names if not is_external_signal(end)}
    if noted - {signal.SIGHUP.name} and len({stop for _, stop in names}) > 1:
        return None  # a launcher answers such a signal to one rank by SIGTERM to the others
    began_ns = min(end.at_ns for end in signalled)
    if any(_failed_before(end, began_ns) for end in ends) or _answered_by_launcher(timeline, signalled):
        return None
    if all(map(is_terminated, signalled)) and unrecorded(timeline, ends):
        return None
    name = next((stop for end, stop in names if is_external_signal(end)), names[0][1])
    closed = "its terminal was closed, or " if name == signal.SIGHUP.name else ""
    return Fault(
        kind=FaultKind.STOPPED,
        at_ns=began_ns,
        what=f"every rank got {name}",
        evidence=f"no rank had ended before: {closed}a scheduler, a time limit or a user stopped it",
    )


def _stop_signal(end: Fault) -> str | None:
    """Name of the signal that stopped a rank from outside, by its own record or by its launcher's; None for others."""
    if is_external_signal(end):
        return end.handler or end.what.partition(" ")[0]
    return next((name for words, name in NOTED_SIGNALS.items() if end.what.startswith(words)), None)


def _answered_by_launcher(timeline: Timeline, signalled: Sequence[Fault]) -> bool:
    """True if one rank got SIGTERM before the others of its host, and they got it when its end was noticed: by the
    launcher. A stop from outside reaches all ranks at once.
    """
    handled = {end.ranks[0]: end for end in signalled if end.handler}
    first = next((note for note in timeline.run.launcher if _is_first_of_ranks(note, timeline, handled)), None)
    ranks = {rank.rank: rank for rank in timeline.run.ranks}
    if first is None or first.rank not in ranks:
        return False
    own_ns = _terminated_wall_ns(timeline, ranks[first.rank], handled)
    boot_id = ranks[first.rank].info.host.boot_id
    others = [rank for rank in ranks.values() if rank.rank != first.rank and rank.info.host.boot_id == boot_id]
    times_ns = [at_ns for rank in others if (at_ns := _terminated_wall_ns(timeline, rank, handled)) is not None]
    if own_ns is None or not others or len(times_ns) < len(others):
        return False
    return min(times_ns) - own_ns >= TERMINATED_APART_NS and min(times_ns) >= first.at_wall_ns - FILE_TIME_ERROR_NS


def _is_first_of_ranks(note: LauncherNote, timeline: Timeline, handled: Container[int | None]) -> bool:
    """False for a time in whole seconds too: torchrun's own are cut, and so they are too early. `handled`: ranks whose
    handler ended them.
    """
    by_signal = note.exit_code == -signal.SIGTERM or note.rank in handled
    terminated = note.rank is not None and note.first and by_signal
    return terminated and note.attempt == timeline.run.last_attempt and note.at_wall_ns % SECOND_NS != 0


def _terminated_wall_ns(timeline: Timeline, rank: RankRecords, handled: Mapping[int, Fault]) -> int | None:
    """Wall time at which the rank wrote its stacks for SIGTERM, or its handler ended it."""
    stacks = rank.info.signals.get(signal.SIGTERM.name)
    offsets_ns = [clock.wall_offset_ns for clock in timeline.clocks if clock.rank == rank.rank]
    at_ns = next((look.at_ns for look in rank.looks if not look.by_agent and look.stack == stacks), None)
    at_ns = handled[rank.rank].at_ns if at_ns is None and rank.rank in handled else at_ns
    return None if at_ns is None or not offsets_ns else at_ns + offsets_ns[0]


def _failed_before(end: Fault, noted_ns: int) -> bool:
    """True for an error of the rank itself that no stop explains: no signal had reached the rank, or it came earlier
    than a launcher needs to end its ranks.
    """
    if end.kind not in OWN_FAILURES or end.of_communication or "KeyboardInterrupt" in end.what:
        return False
    raised = end.kind in (FaultKind.EXCEPTION, FaultKind.OUT_OF_MEMORY)
    by_signal = not raised or RECEIVED in end.evidence or any(word in end.what for word in TERMINATED)
    return not by_signal or noted_ns - end.at_ns > GRACE_NS


def _signal_name(number: int) -> str:
    names = {member.value: member.name for member in signal.Signals}
    return names.get(number, f"signal {number}")


def _first(
    ends: list[Fault], notes: Mapping[int | None, LauncherNote], timeline: Timeline
) -> tuple[Fault | None, list[Fault]]:
    """The first end and the ends that may have been first as well.

    The launcher decides if it saw a rank killed or is the only witness; otherwise the times decide that the ranks
    wrote: of several exceptions, the launcher may notice a later one first. It cannot order ranks that exited within
    one second. Ranks that it ended itself came later.
    """
    candidates = [end for end in ends if end.is_fault]
    of_ranks = [note for note in notes.values() if note.rank is not None]
    not_terminated = [note for note in of_ranks if note.exit_code != -signal.SIGTERM]
    certain = {
        note.rank
        for note in of_ranks
        if note.first
        and (
            note.exit_code < 0 or (not_terminated == [note] and not _has_silent_neighbour(timeline, ends, notes, note))
        )
    }
    raised = [end for end in candidates if end.raised and not end.of_communication]
    noted = [
        end
        for end in candidates
        if end.ranks[0] in certain
        and not (end.raised and len(raised) > 1)
        and not (end.of_communication and any(other.raised for other in candidates if other is not end))
    ]
    by_itself = [end for end in candidates if not is_external_signal(end) and not _has_no_record(end)]
    by_handler = [end for end in candidates if end.handler in STOP_SIGNALS]
    own = [end for end in by_itself if not end.of_communication]
    by_itself = own or [*by_itself, *by_handler]
    first = min(noted or by_itself or candidates, key=lambda end: end.at_ns, default=None)
    if first is None or noted:
        return first, []
    others = [end for end in by_itself or candidates if end is not first and _may_precede(timeline, end, first)]
    return first, [*others, *possible_earlier_ends(timeline, first, ends)]


def _may_precede(timeline: Timeline, end: Fault, first: Fault) -> bool:
    """True if `end`, whose last record is not the earlier one, may lie before `first`."""
    return is_end_unknown(first) or end.at_ns - first.at_ns < clock_doubt_ns(timeline, first.ranks[0], end.ranks[0])


def _has_silent_neighbour(
    timeline: Timeline, ends: Iterable[Fault], notes: Mapping[int | None, LauncherNote], noted: LauncherNote
) -> bool:
    """True if a rank of the same host has neither record nor note of its end, as after `os._exit(0)`."""
    ranks = {rank.rank: rank for rank in timeline.run.ranks}
    silent = [ranks[end.ranks[0]] for end in ends if end.kind in SILENT and end.ranks[0] not in notes]
    noted_rank = ranks.get(noted.rank or 0)
    return noted_rank is not None and any(
        rank.info.host == noted_rank.info.host and not rank.running for rank in silent
    )


def _undecided(end: Fault) -> Fault:
    if not end.is_fault:
        return end
    doubt = "it is unknown whether it was the first"
    return replace(end, evidence="; ".join([*([end.evidence] if end.evidence else []), doubt]), confidence=UNKNOWN)


def _has_no_record(end: Fault) -> bool:
    return end.evidence in (NO_RECORD, REFUSED_RECORD)


def _following(end: Fault, first: Fault) -> Fault:
    """Mark an end as following the first.

    The time of a signal or a kill is not recorded, so it is at least the first's.
    """
    if not end.is_fault:
        return end
    timed = end.kind in (FaultKind.EXCEPTION, FaultKind.OUT_OF_MEMORY)
    return replace(end, follows=True, at_ns=end.at_ns if timed else max(end.at_ns, first.at_ns))


def clock_doubt_ns(timeline: Timeline, first: int, second: int) -> int:
    """Lead that a time of one rank needs over a time of another to be certainly earlier."""
    clocks = [clock for clock in timeline.clocks if clock.rank in (first, second)]
    error_ns = error_between_ns(clocks) if len(clocks) == 2 else None
    return MAX_WALL_CLOCK_ERROR_NS if error_ns is None else error_ns
