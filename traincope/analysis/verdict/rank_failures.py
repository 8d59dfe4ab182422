"""Findings about ranks without a clean end: which rank ended first, as far as that is known, and what it was in.

Ranks that finished before the others (out of batches, stopped early, or left by `sys.exit(0)`) are named with it: the
ranks that continue wait for them in the next collective, and fail or hang there.
"""

import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.endings import (
    clock_doubt_ns,
    first_end,
    is_end_unknown,
    is_external_signal,
    is_terminated,
    last_activity,
    possible_earlier_ends,
    shared_with,
    unrecorded,
)
from traincope.analysis.faults.faults import ENDS, Fault, FaultKind
from traincope.analysis.faults.hangs.hang import Hang
from traincope.analysis.faults.lost_hosts import lost_hosts
from traincope.analysis.faults.recovery import recovery
from traincope.analysis.faults.shortages import OutOfMemory
from traincope.analysis.faults.stream import causes
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.analysis.verdict.lost_connections import did_not_arrive, how_left, left_early, lost_connection
from traincope.events import CLEAN, NO_STEP, Kind, Phase
from traincope.timeline import RankTimeline, Timeline
from traincope.units import count, duration, numbers

TRAINING = (Phase.FORWARD, Phase.BACKWARD)
CLEARLY_EARLIER_NS = 10_000_000
"""Lead of one rank's recorded end over all others' records that makes it certainly the first."""
RECENT_NS = 60_000_000_000
"""Age of the last record up to which a job whose processes cannot be seen counts as running."""
SECOND_NS = 1_000_000_000
WORKER_KILLED = re.compile(r"DataLoader worker \(pid[^)]*\) is killed by signal: ([A-Z][\w ]*)")
"""Words of torch for the death of a data loader's worker, with the name of the signal."""
WARNINGS = (signal.SIGUSR1.name, signal.SIGUSR2.name)
HANDLE_WARNINGS = (
    "Schedulers warn by this signal before they stop a job (sbatch --signal), and it ends a process that does not "
    "handle it: handle it, save a checkpoint, and exit. "
)
READ_LOG = "Read the scheduler's log for a time limit, a preemption or a cancellation."
MAX_NAMED = 4
"""With more ranks than this they are counted, not named."""


def rank_failures(
    timeline: Timeline,
    faults: Sequence[Fault],
    hangs: Sequence[Hang] = (),
    out_of_memory: Sequence[OutOfMemory] = (),
) -> Iterator[Finding]:
    """The first rank to end, if one is known to have ended; then the ranks without any record.

    All arguments are of the same timeline. A hang explains the ends that follow it, a shortage of memory the end of its
    rank.
    """
    ends = [fault for fault in faults if fault.kind in ENDS]
    first = first_end(fault for fault in faults if fault.kind in ENDS or fault.kind == FaultKind.STOPPED)
    firsts = [end for end in ends if end.is_fault and not end.follows]
    unknown = [] if first is None or first.confidence != UNKNOWN else possible_earlier_ends(timeline, first, ends)
    silent = unrecorded(timeline, ends) if first is not None and is_terminated(first) else ()
    if first is not None and silent:
        yield _after_unrecorded(first, silent)
    elif first is not None and unknown and is_external_signal(first):
        yield _no_end(timeline, unknown, after=first)
    elif first is not None and firsts and all(end.of_communication for end in firsts):
        unknown = possible_earlier_ends(timeline, first, ends)
        lost = [end for end in ends if end.of_communication]
        absent = did_not_arrive(timeline, first, lost)
        silent = () if absent is None else absent.ranks
        yield absent or lost_connection(timeline, first, lost, unknown)
    elif first is not None and firsts and all(map(_is_interrupted, firsts)) and not _is_alone(timeline, firsts):
        yield _stopped(first)
    elif len(firsts) > 1 and firsts == shared_with(firsts[0], firsts):
        finding = _with_shortage(_shared(timeline, firsts), firsts[0], out_of_memory)
        yield replace(finding, advice=" ".join([finding.advice, *recovery(timeline, faults)]))
    elif len(firsts) > 1:
        yield _undecided(firsts)
    elif first is not None:
        finding = _stopped(first) if first.kind == FaultKind.STOPPED else _first_gone(timeline, first, unknown)
        finding = _with_hang(finding, first, hangs)
        finding = _with_shortage(finding, first, out_of_memory)
        killed = first.ranks if finding.kind == FindingKind.KILLED_RANK and not unknown else ()
        finding = replace(finding, advice=" ".join([finding.advice, *recovery(timeline, faults, host_of=killed)]))
        yield with_early_exits(finding, timeline, failed=[rank for end in ends for rank in end.ranks])
    elif ends and not any(hang.stopped for hang in hangs) and not any(end.is_fault for end in ends):
        yield _going_on(timeline, ends)
    named = {
        *(() if first is None else first.ranks),
        *silent,
        *(rank for host in lost_hosts(timeline) for rank in host.ranks),
    }
    unreported = tuple(rank for rank in timeline.run.missing if rank not in {*named, *timeline.run.refused})
    if unreported:
        yield Finding(
            kind=FindingKind.MISSING_RANK,
            ranks=unreported,
            confidence=HIGH,
            evidence=f"{len(unreported)} of {timeline.run.info.world_size} ranks left no records",
            advice="Copy their rank directories from their hosts to this run, or read their launcher's log there.",
        )


def _with_hang(finding: Finding, first: Fault, hangs: Sequence[Hang]) -> Finding:
    """Add the stop that hid the first exception until its time-out."""
    hidden = next((hang for hang in hangs if causes(first, hang)), None)
    return finding if hidden is None else replace(finding, evidence=f"{finding.evidence}; {hidden.evidence}")


def _with_shortage(finding: Finding, first: Fault, shortages: Sequence[OutOfMemory]) -> Finding:
    """Add what held the memory of the first rank, if a shortage ended it, and the remedy in place of the traceback."""
    short = next((each for each in shortages if first.ranks == (each.rank,)), None)
    if short is None:
        return finding
    advice = f"{short.remedy.text} {finding.advice}" if short.by_kernel else short.remedy.text
    return replace(finding, evidence="; ".join([finding.evidence, *short.phrases]), advice=advice)


def _is_interrupted(end: Fault) -> bool:
    """Return whether Ctrl-C ended the job or a rank: the launcher got it, or the rank itself."""
    by_signal = end.kind in (FaultKind.STOPPED, FaultKind.SIGNAL) and signal.SIGINT.name in end.what
    return by_signal or end.raised == KeyboardInterrupt.__name__


def _is_alone(timeline: Timeline, interrupted: Sequence[Fault]) -> bool:
    """Return whether one rank of several was interrupted, and its launcher ended the others by another signal.

    Ctrl-C reaches all of them, and the launcher, which passes it on. A rank may fail by the end of another before that.
    """
    first, *others = interrupted
    notes = [note for note in timeline.run.launcher if note.attempt == timeline.run.last_attempt]
    of_others = [note for note in notes if note.rank not in first.ranks]
    passed_on = any(note.rank is None or note.exit_code == -signal.SIGINT for note in of_others)
    return not others and bool(first.ranks) and bool(of_others) and not passed_on


def _stopped(first: Fault) -> Finding:
    if _is_interrupted(first):
        return Finding(
            kind=FindingKind.STOPPED_JOB,
            confidence=HIGH,
            evidence=f"stopped by you, with Ctrl-C, and no rank failed by itself: {first.what}",
            advice="",
        )
    if first.handler:
        return Finding(
            kind=FindingKind.STOPPED_JOB,
            confidence=HIGH,
            evidence=f"{first.what}: {first.evidence}",
            advice="Continue from the last checkpoint. The scheduler's log says why it asked.",
        )
    return Finding(
        kind=FindingKind.STOPPED_JOB,
        confidence=MEDIUM,
        evidence=f"no rank failed by itself: {first.what}{f'; {first.evidence}' if first.evidence else ''}",
        advice=f"{HANDLE_WARNINGS}{READ_LOG}" if first.what.endswith(WARNINGS) else READ_LOG,
    )


def _no_end(timeline: Timeline, ends: Sequence[Fault], *, after: Fault | None = None) -> Finding:
    """Name ranks whose end is unknown. `after`: a signal to another rank, which may be a launcher's answer."""
    signal = "" if after is None else f"rank {after.ranks[0]} got {after.what}, as ranks get after another ended; "
    return Finding(
        kind=FindingKind.NO_END_RECORDED,
        ranks=tuple(sorted(end.ranks[0] for end in ends)),
        confidence=UNKNOWN,
        evidence=signal + _last_heard(timeline, ends),
        advice="Check whether their processes still run. If not, read their launcher's log and the kernel's log of "
        "their host.",
    )


def _after_unrecorded(first: Fault, silent: tuple[int, ...]) -> Finding:
    """SIGTERM to a rank, which may be its launcher's answer to the end of a rank that recorded nothing."""
    subject = numbers(silent, "rank")
    return Finding(
        kind=FindingKind.MISSING_RANK,
        ranks=silent,
        confidence=UNKNOWN,
        evidence=f"rank {first.ranks[0]} ended by SIGTERM, as ranks do after another ended; {subject} left no records, "
        "so it is unknown whether one failed before",
        advice=f"Read the output of {subject} and the launcher's log: a rank that fails before its first process "
        "group or optimizer records nothing.",
    )


def _going_on(timeline: Timeline, ends: Sequence[Fault]) -> Finding:
    """Ranks without an end, and without a fault that ended the job: it runs, if their processes or records show it."""
    no_end = _no_end(timeline, ends)
    finding = with_early_exits(no_end, timeline, failed=[rank for end in ends for rank in end.ranks])
    confidence = _runs(timeline, [end.ranks[0] for end in ends]) if finding is no_end else UNKNOWN
    if confidence == UNKNOWN:
        return finding
    numbers_of = [rank.steps[-1].number for rank in timeline.ranks if rank.steps]
    latest = max(
        [*numbers_of, *(rank.open_step for rank in timeline.ranks if rank.open_step is not None)], default=None
    )
    reached = "no step is recorded" if latest is None else f"step {latest}"
    seen = "" if confidence == HIGH else "; its processes are not seen from this host"
    return Finding(
        kind=FindingKind.RUNNING,
        confidence=confidence,
        evidence=f"{reached}, {_last_record(timeline)}{seen}",
        advice="",
    )


def _runs(timeline: Timeline, ranks: Sequence[int]) -> str:
    """High if the processes of these ranks run, medium if they cannot be seen and wrote records lately."""
    states = {rank.running for rank in timeline.run.ranks if rank.rank in ranks}
    silent_ns = _silent_ns(timeline)
    if states == {True}:
        return HIGH
    return MEDIUM if False not in states and silent_ns is not None and abs(silent_ns) < RECENT_NS else UNKNOWN


def _silent_ns(timeline: Timeline) -> int | None:
    """Time from the last record of any rank to the reading, by this host's clock. Negative if clocks differ."""
    read_ns = timeline.run.read_wall_ns
    return None if read_ns is None else read_ns - timeline.end_ns


def _last_record(timeline: Timeline) -> str:
    silent_ns = _silent_ns(timeline)
    if silent_ns is None:
        return "the time of its last record is unknown"
    if silent_ns < -SECOND_NS:
        return f"last record {duration(-silent_ns)} ahead of this host's clock"
    return f"last record {duration(max(silent_ns, 0))} ago"


def _last_heard(timeline: Timeline, ends: Sequence[Fault]) -> str:
    """Sentence about ranks without a recorded end: when they were last heard of, and what they were in."""
    running = {rank.rank for rank in timeline.run.ranks if rank.running}
    ranks = sorted(end.ranks[0] for end in ends)
    activity = {rank.rank: last_activity(rank) for rank in timeline.ranks}
    named = [
        f"rank {end.ranks[0]} was last heard of {(end.at_ns - timeline.start_ns) / 1e9:.3f} s after the run's first "
        f"record, in {activity[end.ranks[0]]}"
        for end in ends[:MAX_NAMED]
    ]
    more = [f"{len(ends) - MAX_NAMED} more ranks in the same state"] if len(ends) > MAX_NAMED else []
    if running.issuperset(ranks):
        processes = "the process of rank" if len(ranks) == 1 else "the processes of ranks"
        began = f"{processes} {numbers(ranks)} ran when this was read"
    else:
        began = f"the record does not show whether {numbers(ranks, 'rank')} ended"
    return "; ".join([began, *named, *more])


def _undecided(firsts: list[Fault]) -> Finding:
    apart_ns = max(end.at_ns for end in firsts) - min(end.at_ns for end in firsts)
    candidates = " or ".join(f"rank {end.ranks[0]} ({end.what})" for end in firsts)
    return Finding(
        kind=FindingKind.FAILED_RANK if all(map(_raised, firsts)) else FindingKind.KILLED_RANK,
        ranks=tuple(sorted(end.ranks[0] for end in firsts)),
        steps=tuple(sorted({end.step for end in firsts if end.step is not None})),
        confidence=UNKNOWN,
        evidence=f"{candidates} ended first: {apart_ns / 1e6:.3f} ms apart, within the error of their clocks",
        advice="Read the traceback of each: one rank's error follows from the other's.",
    )


def _shared(timeline: Timeline, firsts: Sequence[Fault]) -> Finding:
    """Ranks that raised the same exception at the same line. If most ranks did, the program is the cause, and not a
    rank: the others may have been ended before they raised it. A rank is, if the error itself is that its model is not
    that of the others.
    """
    first = min(firsts, key=lambda end: end.at_ns)
    ranks = tuple(sorted(rank for end in firsts for rank in end.ranks))
    odd = odd_models({end.ranks[0]: end.message for end in firsts}, timeline.run.info.world_size)
    if odd:
        return _other_model(firsts, odd)
    if _report_the_same(timeline, firsts):
        return _of_failures(firsts)
    is_program = 2 * len(ranks) > timeline.run.info.world_size
    who = f"all {len(ranks)} ranks" if len(ranks) == timeline.run.info.world_size else numbers(ranks, "rank")
    within = duration(max(end.at_ns for end in firsts) - first.at_ns)
    return Finding(
        kind=FindingKind.FAILED_RANK,
        ranks=() if is_program else ranks,
        steps=tuple(sorted({end.step for end in firsts if end.step is not None})),
        confidence=HIGH,
        evidence=f"{who} raised the same exception within {within}; on rank {first.ranks[0]}: {first.what}",
        advice="Read the traceback of one of them: the program raises it on each rank, and none of them is the cause."
        if is_program
        else "Read the traceback of one of them: errors of the other ranks follow from theirs.",
    )


def _report_the_same(timeline: Timeline, firsts: Sequence[Fault]) -> bool:
    """True if all ranks of the job raised an error that has the same ranks as failed. In a part of the job they may be
    counted within their group.
    """
    named = {tuple(rank for rank, _ in end.failures) for end in firsts}
    return len(named) == 1 and any(named) and len(firsts) == timeline.run.info.world_size


def _of_failures(firsts: Sequence[Fault]) -> Finding:
    """Ranks whose failures torch raised again on all ranks. If they are more than half of these, what they share is the
    cause.
    """
    first = min(firsts, key=lambda end: end.at_ns)
    is_shared = 2 * first.num_failed > len(firsts)
    named = first.failures[:1] if is_shared else first.failures
    failed = "; ".join(f"rank {rank} raised {raised}" for rank, raised in named)
    if first.num_failed > len(named):
        failed = f"{first.num_failed:,} ranks failed: {failed}"
    where = f" at {first.site}" if first.site else ""
    ranks = () if is_shared or first.num_failed > len(named) else tuple(rank for rank, _ in named)
    whose = numbers(ranks, "rank") if ranks else "these ranks"
    return Finding(
        kind=FindingKind.FAILED_RANK,
        ranks=ranks,
        steps=tuple(sorted({end.step for end in firsts if end.step is not None})),
        confidence=HIGH,
        evidence=f"{failed}; so torch raised {first.raised} on all {len(firsts)} ranks{where}",
        advice=f"Mend the {named[0][1].kind} of {whose}: the {first.raised} of each rank follows from it.",
    )


def _other_model(firsts: Sequence[Fault], odd: tuple[int, ...]) -> Finding:
    """Ranks whose model is not that of most ranks, so that DDP raised on all that compared theirs."""
    first = min(firsts, key=lambda end: (end.ranks[0] not in odd, end.at_ns))
    subject, model = (numbers(odd, "rank"), "a model" if len(odd) == 1 else "models")
    return Finding(
        kind=FindingKind.FAILED_RANK,
        ranks=odd,
        steps=tuple(sorted({end.step for end in firsts if end.step is not None})),
        confidence=HIGH,
        evidence=(
            f"{subject} gave DDP {model} with other parameters than most ranks, so it raised an error on "
            f"{numbers(tuple(sorted(rank for end in firsts for rank in end.ranks)), 'rank')}; "
            f"on rank {first.ranks[0]}: {first.what}"
        ),
        advice=(
            f"Find what {subject} {'builds' if len(odd) == 1 else 'build'} or freezes in another way before DDP wraps "
            "the model: a file, a setting or a folder that other ranks do not have."
        ),
    )


def _raised(end: Fault) -> bool:
    return end.kind in (FaultKind.EXCEPTION, FaultKind.OUT_OF_MEMORY)


def _first_gone(timeline: Timeline, first: Fault, unknown: Sequence[Fault]) -> Finding:
    """Name the first known end. `unknown`: ranks that may have ended before it."""
    ended = [rank for rank in timeline.ranks if rank.ending != CLEAN]
    timeline_of_first = next((rank for rank in ended if rank.rank == first.ranks[0]), None)
    lead_ns = (
        _lead(timeline, ended)
        if timeline_of_first is not None and timeline_of_first.last_ns == min(rank.last_ns for rank in ended)
        else None
    )
    early = not is_end_unknown(first) and (len(ended) <= 1 or (lead_ns or 0) >= CLEARLY_EARLIER_NS)
    raised = _raised(first)
    alone = timeline.run.info.world_size == 1
    evidence = _evidence(first, timeline_of_first, lead_ns=lead_ns, certain=not unknown, alone=alone)
    return Finding(
        kind=FindingKind.FAILED_RANK if raised or first.kind == FaultKind.EXIT else FindingKind.KILLED_RANK,
        ranks=first.ranks,
        steps=() if first.step is None else (first.step,),
        confidence=UNKNOWN if unknown else HIGH if first.confidence == HIGH or early else MEDIUM,
        evidence="; ".join([evidence, *([_last_heard(timeline, unknown)] if unknown else [])]),
        advice=_advice(first, raised=raised, certain=not unknown, alone=alone),
    )


def _lead(timeline: Timeline, ranks: Iterable[RankTimeline]) -> int | None:
    """Lead of one rank's last record over those of all others, at least; None without others.

    Not positive if host clocks leave the order open.
    """
    first, *others = sorted(ranks, key=lambda rank: rank.last_ns)
    return min(
        (other.last_ns - first.last_ns - clock_doubt_ns(timeline, first.rank, other.rank) for other in others),
        default=None,
    )


def _evidence(
    first: Fault, timeline_of_first: RankTimeline | None, *, lead_ns: int | None, certain: bool, alone: bool
) -> str:
    known = "" if certain else "of the known ends, "
    order = f"{'ended' if first.hidden_at is None else 'failed'}{'' if alone else ' first'}"
    parts = [f"{known}rank {first.ranks[0]} {order}: {_how(first)}"]
    if lead_ns is not None and lead_ns > 0:
        parts[0] += f", {lead_ns / 1e6:.0f} ms before the last record of any other rank"
    inside = timeline_of_first is not None and any(record.in_thread for record in timeline_of_first.open_records)
    parts += [f"it was in {last_activity(timeline_of_first)}"] if timeline_of_first is not None and inside else []
    return "; ".join([*parts, *([first.evidence] if first.evidence else [])])


def _how(first: Fault) -> str:
    if _raised(first):
        return f"it raised {first.what}"
    return f"by {first.what}" if first.kind == FaultKind.SIGNAL else f"it {first.what}"


def _advice(first: Fault, *, raised: bool, certain: bool, alone: bool) -> str:
    followed = "" if alone else ": errors of the other ranks follow from its end"
    if not certain:
        return "Check whether the other named ranks still run: the rank that ended first is the cause."
    worker = WORKER_KILLED.search(first.what)
    if worker is not None:
        return _of_worker(worker.group(1))
    where = f" at {first.site}" if first.site else ""
    if first.hidden_at is not None:
        return (
            f"Mend the {first.raised}{where}. Call no collective in `except` or `finally`{_at(first.hidden_at)}: the "
            "other ranks do not join it, and the time-out hides the first error."
        )
    if first.handler:
        return f"Find who sent {first.handler} to rank {first.ranks[0]} (its scheduler, a drained node){followed}."
    if first.raised == KeyboardInterrupt.__name__:
        return (
            f"Find who interrupted rank {first.ranks[0]} alone (kill -INT, a debugger, a timer of the training)"
            f"{followed}."
        )
    if first.kind == FaultKind.EXIT and first.site and not first.message:
        return f"Look at {first.site}, where rank {first.ranks[0]} leaves{followed}."
    if raised or first.kind == FaultKind.EXIT:
        line = f"Look at {first.site}, and read" if first.site else "Read"
        whose = "its" if alone else "that rank's"
        return f"{line} {whose} traceback{followed}."
    if first.kind == FaultKind.SIGNAL:
        return _of_signal(first)
    return "Read the kernel's log on its host (dmesg: out of memory, SIGKILL) and the launcher's exit code."


def _of_signal(first: Fault) -> str:
    if is_external_signal(first):
        return "Read its stacks in its rank directory (signal-*.txt)."
    if first.site:
        return f"Look at {first.site}: native code there crashed. Its rank directory has all stacks (signal-*.txt)."
    return (
        f"Native code of rank {first.ranks[0]} crashed: read what it printed last. Record again with "
        "TRAINCOPE_SIGNAL_STACKS=on: the report then has the line."
    )


def _at(site: str) -> str:
    return f" ({site})" if site else ""


def _of_worker(name: str) -> str:
    """Advice on a killed worker of a data loader, by the name of its signal."""
    if "Bus" in name:
        return "Give the container more shared memory (/dev/shm), or the DataLoader fewer workers."
    if "Killed" in name:
        return (
            "Read the kernel's log on its host (dmesg): mostly the memory was full. Use fewer workers or a smaller "
            "prefetch, and look at the samples of that batch."
        )
    if "Terminated" in name:
        return "Find who ended the DataLoader's worker: the launcher, the scheduler, or a limit of the container."
    return "Run the Dataset's code alone on the samples of that batch: native code in it crashed the worker."


def with_early_exits(finding: Finding, timeline: Timeline, *, failed: Iterable[int]) -> Finding:
    """Add the ranks that finished before the others, if any, to the finding about the first of the `failed` ranks."""
    failed_ranks = set(failed)
    trained = {rank.rank: _last_trained(rank) for rank in timeline.ranks}
    last_step = max((trained[rank.rank] for rank in timeline.ranks if rank.ending != CLEAN), default=NO_STEP)
    early = [
        rank.rank
        for rank in timeline.ranks
        if rank.ending == CLEAN and rank.rank not in failed_ranks and NO_STEP < trained[rank.rank] < last_step
    ]
    if not early:
        return finding
    names = f"rank {early[0]}" if len(early) == 1 else f"{len(early)} ranks, rank {early[0]} among them,"
    after = min(trained[rank] for rank in early)
    hows = [f"rank {rank} {how}; " for rank in early[:MAX_NAMED] if (how := how_left(timeline, rank))]
    return replace(
        finding,
        ranks=tuple(sorted({*finding.ranks, *early})),
        confidence=MEDIUM,
        evidence=(
            f"{names} ended cleanly after {count(after + 1, 'step')}, the others began {last_step + 1}; "
            f"{''.join(hows)}of the others, {finding.evidence}"
        ),
        advice=left_early(timeline, early),
    )


def _last_trained(rank: RankTimeline) -> int:
    """The rank's last step with a forward or a backward."""
    records = rank.of_kind(Kind.PHASE)
    return int(records["step"][np.isin(records["phase"], TRAINING)].max(initial=NO_STEP))


COUNTS = re.compile(r"but Rank (\d+) has (\d+) params, while rank (\d+) has inconsistent (\d+) params")
"""Each rank raises it with its own number of parameters, and with the number of the first rank that has another one."""
UNLIKE_FIRST = re.compile(r"appears not to match \w+ of the same param in process 0\b")
"""Each rank with another shape than rank 0 raises it."""


def odd_models(messages: Mapping[int, str], num_ranks: int) -> tuple[int, ...]:
    """Ranks whose model is not that of more than half of the ranks; empty if that is not known.

    torch compares the models while DDP wraps them. It raises the same error at the same line on ranks with the usual
    model too: the numbers in it show which model is the odd one.

    Args:
        messages: Rank -> message of its error.
        num_ranks: Number of ranks of the job.
    """
    counts = dict(_counts(messages))
    if counts.keys() == messages.keys() and len(counts) == num_ranks:
        usual, ranks = Counter(counts.values()).most_common(1)[0]
        odd = tuple(sorted(rank for rank, count in counts.items() if count != usual))
        return odd if 2 * ranks > num_ranks else ()
    unlike = {rank for rank, message in messages.items() if UNLIKE_FIRST.search(message)}
    return (0,) if num_ranks > 2 and unlike == set(range(1, num_ranks)) and _is_one_text(messages) else ()


def _counts(messages: Mapping[int, str]) -> list[tuple[int, int]]:
    """Rank -> number of parameters that it counted of its own model. Numbers of a smaller group are left out."""
    found = ((rank, COUNTS.search(message)) for rank, message in messages.items())
    return [(rank, int(match[2])) for rank, match in found if match is not None and int(match[1]) == rank]


def _is_one_text(messages: Mapping[int, str]) -> bool:
    """Return whether the ranks differ from rank 0 in the same way. In front of the text is the rank's number."""
    return len({message.partition(": ")[2] for message in messages.values()}) == 1
