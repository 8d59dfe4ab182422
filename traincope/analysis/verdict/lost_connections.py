"""Findings about what the other ranks lost: a host, or the connection to a rank that is the cause."""

import signal
from collections.abc import Iterator, Sequence

from traincope.analysis.confidence import MEDIUM, UNKNOWN
from traincope.analysis.faults.endings import clock_doubt_ns
from traincope.analysis.faults.exceptions import Chain, Raised, exit_of
from traincope.analysis.faults.faults import Fault
from traincope.analysis.faults.hangs.hang import Hang
from traincope.analysis.faults.hangs.testimony import missed_ranks
from traincope.analysis.faults.lost_hosts import lost_hosts, unexplained
from traincope.analysis.faults.recovery import recovery
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.events import CLEAN, END_OF_TIME_NS, NO_STEP
from traincope.timeline import RankTimeline, Timeline
from traincope.units import count, numbers

MAX_NAMED = 4
"""Ranks whose ends are named."""


def lost_host_findings(timeline: Timeline, faults: Sequence[Fault], hangs: Sequence[Hang]) -> Iterator[Finding]:
    """One finding per lost host that no hang names. `ranks` are those of the host: none of them is accused.

    `faults` and `hangs`: of the same timeline, with its checkpoints.
    """
    for lost in unexplained(lost_hosts(timeline), hangs):
        yield Finding(
            kind=FindingKind.LOST_HOST,
            ranks=lost.ranks,
            steps=() if lost.step is None else (lost.step,),
            confidence=lost.confidence,
            evidence=lost.sentence(start_ns=timeline.start_ns),
            advice=" ".join([check_host(lost.host.name), *recovery(timeline, faults, host_of=lost.ranks)]),
        )


def check_host(name: str) -> str:
    """Advice on a lost host."""
    return f"Check {name} and its network: power, kernel log, link. It is not known which of its ranks failed."


def lost_connection(
    timeline: Timeline, first: Fault, failed: Sequence[Fault], unknown: Sequence[Fault] = ()
) -> Finding:
    """Name the ranks that had ended before in the middle of a step that the others were in, or the one that stopped
    recording before; otherwise no rank.

    `first`: the earliest of the `failed` ends, all of them errors of the communication. `unknown`: ranks that recorded
    no end, and may have ended before it.
    """
    ranks = sorted(rank for end in failed for rank in end.ranks)
    left = [rank for rank in timeline.ranks if rank.ending == CLEAN and _precedes(timeline, rank, first)]
    reached = min((_last_complete(rank) for rank in timeline.ranks if rank.rank in ranks), default=NO_STEP)
    early = [rank for rank in left if _last_complete(rank, until_ns=_left_ns(timeline, rank)) <= reached]
    after = f"communication of {numbers(ranks, 'rank')} failed: {first.what}"
    steps = () if first.step is None else (first.step,)
    if early and len(early) == len(left):
        names = numbers([rank.rank for rank in early], "rank")
        hows = [f"; rank {rank.rank} {how}" for rank in early if (how := how_left(timeline, rank.rank))]
        return Finding(
            kind=FindingKind.FAILED_RANK,
            ranks=tuple(rank.rank for rank in early),
            steps=steps,
            confidence=MEDIUM,
            evidence=f"{names} ended cleanly after {_steps(reached)}, before the others{''.join(hows)}; then {after}",
            advice=left_early(timeline, [rank.rank for rank in early]),
        )
    missed = {ranks for _, ranks in missed_ranks(timeline)}
    if len(missed) == 1:
        (late,) = missed
        return Finding(
            kind=FindingKind.FAILED_RANK,
            ranks=tuple(sorted(late)),
            steps=steps,
            confidence=MEDIUM,
            evidence=f"{numbers(sorted(late), 'rank')} did not reach the monitored_barrier of the others; {after}",
            advice=f"Look for what {numbers(sorted(late), 'rank')} did instead: fewer batches, an error that it "
            "handled, or a longer step.",
        )
    if len(unknown) == 1 and not left:
        (end,) = unknown
        heard = (end.at_ns - timeline.start_ns) / 1e9
        return Finding(
            kind=FindingKind.NO_END_RECORDED,
            ranks=end.ranks,
            steps=steps,
            confidence=MEDIUM,
            evidence=f"rank {end.ranks[0]} recorded no end and nothing later than {heard:.3f} s after the run's first "
            f"record; then {after}",
            advice=f"Read the launcher's log and the kernel's log on the host of rank {end.ranks[0]} (SIGKILL, out of "
            "memory, a crash): the others' errors follow from its end.",
        )
    ended = f"; {numbers([rank.rank for rank in left], 'rank')} had ended cleanly before" if left else ""
    return Finding(
        kind=FindingKind.FAILED_RANK,
        ranks=tuple(sorted({*ranks, *(rank.rank for rank in left)})),
        steps=steps,
        confidence=UNKNOWN,
        evidence=f"{after}{ended}; the rank or the link that caused it is unknown",
        advice="Look for the rank at the other end of the connection: its log, its host, and whether it issued the "
        "same collectives.",
    )


def did_not_arrive(timeline: Timeline, first: Fault, failed: Sequence[Fault]) -> Finding | None:
    """Name the ranks that left no records while all others waited for their first process group, until it failed; None
    if a rank had a group, or if none is missing.
    """
    missing = tuple(rank for rank in timeline.run.missing if rank not in timeline.run.refused)
    waited = tuple(sorted(rank for end in failed for rank in end.ranks))
    if not missing or any(rank.groups or rank.steps for rank in timeline.ranks):
        return None
    notes = {note.rank: note for note in timeline.run.launcher if note.attempt == timeline.run.last_attempt}
    hows = [
        f"; rank {rank} {note.how}"
        for rank in missing[:MAX_NAMED]
        if (note := notes.get(rank)) is not None and note.exit_code != -signal.SIGTERM
    ]
    subject = numbers(missing, "rank")
    return Finding(
        kind=FindingKind.MISSING_RANK,
        ranks=missing,
        confidence=MEDIUM,
        evidence=(
            f"{subject} did not come to the first process group and left no records here, while "
            f"{numbers(waited, 'rank')} waited for it: {first.what}{''.join(hows)}"
        ),
        advice=(
            f"Look at what {subject} did before init_process_group: its output, its host, a download, a lock or a file "
            "that it waited for. `py-spy dump --pid PID` shows where a process stands. If its host has records of its "
            "own, copy them to this run."
        ),
    )


def how_left(timeline: Timeline, rank: int) -> Raised | None:
    """The call by which a rank ended, e.g. "left by sys.exit(0) at train.py:9"; None without one."""
    found = next((each for each in timeline.ranks if each.rank == rank), None)
    left = None if found is None else _exit_of(timeline, found)
    return None if left is None else left[1].last


def _exit_of(timeline: Timeline, rank: RankTimeline) -> tuple[int, Chain] | None:
    return exit_of(rank, next(records for records in timeline.run.ranks if records.rank == rank.rank))


def _left_ns(timeline: Timeline, rank: RankTimeline) -> int:
    """Instant at which the rank left by a call, which ends the step under way without completing it."""
    left = _exit_of(timeline, rank)
    return END_OF_TIME_NS if left is None else left[0]


def left_early(timeline: Timeline, ranks: Sequence[int]) -> str:
    """Advice on ranks that left before the others, whose launcher took that for a success."""
    named = numbers(ranks, "rank")
    calls = [call for rank in ranks if (call := how_left(timeline, rank)) is not None]
    signals = sorted({call.handler for call in calls} - {""})
    if signals:
        return (
            f"Find who sent {' and '.join(signals)} to {named}. Let the handler end the process with a nonzero code, "
            "so that the launcher ends the other ranks, or let all ranks agree on the step in which they stop."
        )
    if calls and calls[0].site:
        return f"Look at {calls[0].site}, where {named} left: all ranks must leave in the same step."
    return (
        f"Give every rank the same number of steps: {named} finished before the others (fewer batches, an early stop "
        "or sys.exit(0)), and the others wait."
    )


def _precedes(timeline: Timeline, rank: RankTimeline, first: Fault) -> bool:
    return first.at_ns - rank.last_ns >= clock_doubt_ns(timeline, rank.rank, first.ranks[0])


def _last_complete(rank: RankTimeline, *, until_ns: int = END_OF_TIME_NS) -> int:
    return max((step.number for step in rank.steps if step.end_ns <= until_ns), default=NO_STEP)


def _steps(last: int) -> str:
    """Number of steps up to this one, which are counted from 0."""
    return "no complete step" if last == NO_STEP else count(last + 1, "step")
