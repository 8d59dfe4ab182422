"""Ranks that came to no clean end: which was first, and what it was in."""

from collections.abc import Iterator

from traincope.analysis.findings import HIGH, MEDIUM, UNKNOWN, Finding, FindingKind
from traincope.events import CLEAN
from traincope.timeline import RankTimeline, Timeline

INNERMOST = 3
"""How many of the intervals a rank died in are told."""
CLEARLY_EARLIER_NS = 10_000_000
"""By how much one rank's records must end before all others' to call it the first."""


def deaths(timeline: Timeline) -> Iterator[Finding]:
    """The first rank to go, if any went; then the ranks that left nothing at all."""
    gone = [rank for rank in timeline.ranks if rank.ending != CLEAN]
    if gone:
        yield _first_gone(gone)
    if timeline.run.missing:
        yield Finding(
            kind=FindingKind.MISSING_RANK,
            ranks=timeline.run.missing,
            confidence=HIGH,
            evidence=f"{len(timeline.run.missing)} of {timeline.run.info.world_size} ranks left nothing to read",
            advice="copy their rank directories from their hosts, or look there for why they never began",
        )


def _first_gone(gone: list[RankTimeline]) -> Finding:
    by_end = sorted(gone, key=lambda rank: rank.last_ns)
    first = by_end[0]
    lead_ns = by_end[1].last_ns - first.last_ns if len(by_end) > 1 else None
    silent = [rank for rank in gone if rank.ending is None]
    if len(silent) == len(gone) > 1 and (lead_ns is None or lead_ns < CLEARLY_EARLIER_NS):
        return Finding(
            kind=FindingKind.NO_END_RECORDED,
            ranks=tuple(rank.rank for rank in gone),
            confidence=UNKNOWN,
            evidence=f"no end is recorded for {len(gone)} ranks, and none stopped clearly before the others",
            advice="if the job is still running, nothing is wrong; else its launcher's log tells who ended it",
        )
    return Finding(
        kind=FindingKind.KILLED_RANK if first.ending is None else FindingKind.FAILED_RANK,
        ranks=(first.rank,),
        steps=() if first.open_step is None else (first.open_step,),
        confidence=HIGH if lead_ns is None or lead_ns >= CLEARLY_EARLIER_NS else MEDIUM,
        evidence=_evidence(first, lead_ns),
        advice=_advice(first),
    )


def _evidence(first: RankTimeline, lead_ns: int | None) -> str:
    how = "its records just stop" if first.ending is None else f"it left the run by {first.ending}"
    lead = f", {lead_ns / 1e6:.0f} ms before any other rank's end" if lead_ns else ""
    return f"rank {first.rank} went first: {how}{lead}; it was in {_doing(first)}"


def _doing(rank: RankTimeline) -> str:
    """The innermost few of what was open, outermost first."""
    inside = [record for record in rank.open_records if record.in_thread]
    if not inside:
        return "nothing that is watched"
    told = [record.what if record.axis is None else f"{record.what} on {record.axis}" for record in inside]
    return " > ".join(told[-INNERMOST:])


def _advice(first: RankTimeline) -> str:
    if first.ending is None:
        return "look on its host for the kernel's log (out of memory, SIGKILL) and the launcher's exit code"
    return "read that rank's own traceback; errors of the other ranks follow from it"
