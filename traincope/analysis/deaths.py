"""Ranks that came to no clean end: which was first, and what it was in."""

from collections.abc import Iterator, Sequence

from traincope.analysis.endings import CLEARLY_EARLIER_NS, first_end, lead
from traincope.analysis.faults import ENDS, Fault, FaultKind
from traincope.analysis.findings import HIGH, MEDIUM, UNKNOWN, Finding, FindingKind
from traincope.analysis.leavers import beside_leavers
from traincope.events import CLEAN
from traincope.timeline import RankTimeline, Timeline

INNERMOST = 3
"""How many of the intervals a rank died in are told."""


def deaths(timeline: Timeline, faults: Sequence[Fault]) -> Iterator[Finding]:
    """The first rank to go, if any went; then the ranks that left nothing at all. `faults`: of the same timeline."""
    ends = [fault for fault in faults if fault.kind in ENDS]
    first = first_end(fault for fault in faults if fault.kind in ENDS or fault.kind == FaultKind.STOPPED)
    firsts = [end for end in ends if end.is_fault and not end.follows]
    if len(firsts) > 1:
        yield _undecided(firsts)
    elif first is not None:
        found = _stopped(first) if first.kind == FaultKind.STOPPED else _first_gone(timeline, first)
        yield beside_leavers(found, timeline, failed=[rank for end in ends for rank in end.ranks])
    elif ends:
        yield _no_end([end.ranks[0] for end in ends])
    untold = tuple(rank for rank in timeline.run.missing if first is None or rank not in first.ranks)
    if untold:
        yield Finding(
            kind=FindingKind.MISSING_RANK,
            ranks=untold,
            confidence=HIGH,
            evidence=f"{len(untold)} of {timeline.run.info.world_size} ranks left nothing to read",
            advice="copy their rank directories from their hosts, or look there for why they never began",
        )


def _stopped(first: Fault) -> Finding:
    return Finding(
        kind=FindingKind.STOPPED_JOB,
        confidence=MEDIUM,
        evidence=f"no rank failed by itself: {first.what}{f'; {first.evidence}' if first.evidence else ''}",
        advice="look into the scheduler's log for a limit of time, a preemption, or who cancelled it",
    )


def _no_end(ranks: list[int]) -> Finding:
    who = f"{len(ranks)} ranks, and none stopped clearly before the others" if len(ranks) > 1 else f"rank {ranks[0]}"
    return Finding(
        kind=FindingKind.NO_END_RECORDED,
        ranks=tuple(ranks),
        confidence=UNKNOWN,
        evidence=f"no end is recorded for {who}",
        advice="if the job is still running, nothing is wrong; else its launcher's log tells who ended it",
    )


def _undecided(firsts: list[Fault]) -> Finding:
    apart_ns = max(end.at_ns for end in firsts) - min(end.at_ns for end in firsts)
    who = " or ".join(f"rank {end.ranks[0]} ({end.what})" for end in firsts)
    return Finding(
        kind=FindingKind.FAILED_RANK if all(map(_raised, firsts)) else FindingKind.KILLED_RANK,
        ranks=tuple(sorted(end.ranks[0] for end in firsts)),
        steps=tuple(sorted({end.step for end in firsts if end.step is not None})),
        confidence=UNKNOWN,
        evidence=f"{who} went first: {apart_ns / 1e6:.3f} ms apart, and so may be their hosts' clocks",
        advice="read what each of them left; the errors of one follow from the other's",
    )


def _raised(end: Fault) -> bool:
    return end.kind in (FaultKind.EXCEPTION, FaultKind.OUT_OF_MEMORY)


def _first_gone(timeline: Timeline, first: Fault) -> Finding:
    gone = [rank for rank in timeline.ranks if rank.ending != CLEAN]
    mine = next((rank for rank in gone if rank.rank == first.ranks[0]), None)
    lead_ns = lead(timeline, gone) if mine is not None and mine.last_ns == min(rank.last_ns for rank in gone) else None
    sure = first.confidence == HIGH or len(gone) <= 1 or (lead_ns or 0) >= CLEARLY_EARLIER_NS
    raised = _raised(first)
    return Finding(
        kind=FindingKind.FAILED_RANK if raised or first.kind == FaultKind.EXIT else FindingKind.KILLED_RANK,
        ranks=first.ranks,
        steps=() if first.step is None else (first.step,),
        confidence=HIGH if sure else MEDIUM,
        evidence=_evidence(first, mine, lead_ns=lead_ns),
        advice=_advice(first, raised=raised),
    )


def _evidence(first: Fault, mine: RankTimeline | None, *, lead_ns: int | None) -> str:
    told = [f"rank {first.ranks[0]} went first: {_how(first, mine)}"]
    if lead_ns is not None and lead_ns > 0:
        told[0] += f", {lead_ns / 1e6:.0f} ms before any other rank's end"
    told += [f"it was in {_doing(mine)}"] if mine is not None else []
    return "; ".join([*told, *([first.evidence] if first.evidence else [])])


def _how(first: Fault, mine: RankTimeline | None) -> str:
    if first.kind == FaultKind.EXIT:
        return f"it {first.what}"
    if mine is not None and mine.ending not in (None, CLEAN):
        return f"it left the run by {mine.ending}{', out of memory' if 'out of memory' in first.what else ''}"
    if first.kind == FaultKind.SIGNAL:
        return f"by {first.what}"
    return f"it {first.what}" if first.confidence == HIGH or mine is None else "its records just stop"


def _doing(rank: RankTimeline) -> str:
    """The innermost few of what was open, outermost first."""
    inside = [record for record in rank.open_records if record.in_thread]
    if not inside:
        return "nothing that is watched"
    told = [record.what if record.axis is None else f"{record.what} on {record.axis}" for record in inside]
    return " > ".join(told[-INNERMOST:])


def _advice(first: Fault, *, raised: bool) -> str:
    if raised or first.kind == FaultKind.EXIT:
        return "read that rank's own traceback; errors of the other ranks follow from it"
    if first.kind == FaultKind.SIGNAL:
        return "its stacks are in its rank directory (signal-*.txt)"
    return "look on its host for the kernel's log (out of memory, SIGKILL) and the launcher's exit code"
