"""The summary of a job: its verdict and mean step, from the summaries of its ranks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.hangs.evidence.patience import STALL_NS
from traincope.analysis.verdict.findings import Finding, FindingKind, ordered, with_gain
from traincope.events import CLEAN
from traincope.summaries.reading import Summaries
from traincope.summaries.slow import SlowRanks, slow_ranks
from traincope.summaries.stopped import Stopped, stopped
from traincope.timeline.evidence import waits_on_the_host
from traincope.units import count, duration, numbers

SHOWN_RANKS = 64
"""Most ranks of a finding that its sentence lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """What rows and last records show of a job."""

    summaries: Summaries
    stopped: Stopped | None
    slow: SlowRanks
    num_rows: int
    steps: tuple[int, int] | None
    """First and last step that any row has; None without rows."""
    mean_step_ns: float | None
    """Mean over ranks and rows, without step 0, the warm-up."""
    terms_ns: Mapping[str, float]
    """Ledger term -> its mean over those of these rows that have terms: steps without detail have none. An agent that
    knows only its own host counts waits for others as transfers, and idle time of a pipeline across hosts too.
    """
    verdict: tuple[Finding, ...]


def job_summary(summaries: Summaries) -> JobSummary:
    """Compute what the summaries show. Pure."""
    still, slow = stopped(summaries), slow_ranks(summaries.ranks)
    wall_ns, num_rows, num_detailed, terms = 0, 0, 0, dict[str, int]()
    steps: list[int] = []
    for rank in summaries.ranks:
        rows = rank.rows
        if not len(rows.step):
            continue
        counted = rows.step > 0
        detailed = counted & rows.detailed
        wall_ns += int(rows.wall_ns.sum(where=counted))
        num_rows += int(np.count_nonzero(counted))
        num_detailed += int(np.count_nonzero(detailed))
        for term, ns in zip(rows.names, rows.terms_ns.sum(axis=1, where=detailed).tolist(), strict=True):
            terms[term] = terms.get(term, 0) + ns
        steps += rows.step[[0, -1]].tolist()
    return JobSummary(
        summaries=summaries,
        stopped=still,
        slow=slow,
        num_rows=num_rows,
        steps=(min(steps), max(steps)) if steps else None,
        mean_step_ns=wall_ns / num_rows if num_rows else None,
        terms_ns={term: ns / num_detailed for term, ns in sorted(terms.items())} if num_detailed else {},
        verdict=ordered(_findings(summaries, still, slow)),
    )


def _findings(summaries: Summaries, still: Stopped | None, slow: SlowRanks) -> Iterator[Finding]:
    if still is not None:
        yield _hang(summaries, still)
    lost = tuple(rank for rank in summaries.missing if rank not in summaries.refused)
    if lost:
        yield Finding(
            kind=FindingKind.MISSING_RANK,
            ranks=lost,
            confidence=HIGH,
            evidence=f"{_ranks(lost)} left no readable directory",
            advice="Copy the directories of these ranks from their hosts.",
        )
    ended = [rank for rank in summaries.ranks if rank.ending not in (None, CLEAN)]
    ended.sort(key=lambda rank: (rank.last_ns is None, rank.last_ns or 0, rank.rank))
    failed = tuple(rank.rank for rank in ended)
    if failed:
        names = dict.fromkeys(str(rank.ending) for rank in ended)
        first = f"; the last record of rank {failed[0]} is the oldest" if len(failed) > 1 else ""
        yield Finding(
            kind=FindingKind.FAILED_RANK,
            ranks=failed,
            confidence=MEDIUM,
            evidence=f"{_ranks(failed)} ended with {', '.join(names)}{first}",
            advice=f"Read the exception of rank {failed[0]}: traincope report RUN --detail all.",
        )
    unknown = tuple(rank.rank for rank in summaries.ranks if rank.ending is None)
    if unknown and still is None:
        yield Finding(
            kind=FindingKind.NO_END_RECORDED,
            ranks=unknown,
            confidence=UNKNOWN,
            evidence=f"the record does not show whether {_ranks(unknown)} ended",
            advice="Check whether their processes still run.",
        )
    for rank in slow.ranks:
        where = ", ".join(rank.terms) or "all its own work together"
        yield Finding(
            kind=FindingKind.STRAGGLER,
            ranks=(rank.rank,),
            confidence=HIGH if waits_on_the_host(summaries.info.versions) else MEDIUM,
            evidence=f"rank {rank.rank} is later than its peers by {duration(rank.late_ns)} per step, in {where}; "
            f"its peers wait and it does not",
            advice=with_gain(f"Check the host of rank {rank.rank} ({_host(summaries, rank.rank)}).", rank.gain_ratio),
            estimated_gain_ratio=rank.gain_ratio,
        )


def _hang(summaries: Summaries, still: Stopped) -> Finding:
    waiting = len(still.directly) + len(still.indirectly)
    ended = any(rank.ending not in (None, CLEAN) for rank in summaries.ranks)
    is_stall = not ended and still.still_ns is not None and still.still_ns < STALL_NS
    kind = FindingKind.STALL if is_stall else FindingKind.HANG
    if not still.culprits:
        return Finding(
            kind=kind,
            confidence=UNKNOWN,
            evidence=f"{count(waiting, 'rank')} wait in collectives, and no rank that they wait for is outside of one",
            advice="Read the records of all ranks: traincope report RUN --detail all.",
        )
    first = still.culprits[0]
    time = "" if still.still_ns is None else f" for {duration(still.still_ns)}"
    seen = f"entered no collective{time} ({still.doing})" if still.doing else "left no records"
    behind = f"; {count(len(still.indirectly), 'more rank')} waited for those" if still.indirectly else ""
    host = next((rank for rank in summaries.ranks if rank.rank == first), None)
    process = "" if host is None else f" (process {host.pid} on {host.host})"
    return Finding(
        kind=kind,
        ranks=still.culprits,
        steps=() if still.step is None else (still.step,),
        confidence=MEDIUM,
        evidence=f"{_ranks(still.culprits)} {seen}; {_ranks(still.directly)} waited for it in {still.operation} on "
        f"{still.axis}{behind}",
        advice=f"Get the stacks of rank {first}{process}: py-spy dump --pid PID.",
    )


def _ranks(ranks: tuple[int, ...]) -> str:
    more = f" and {count(len(ranks) - SHOWN_RANKS, 'more rank')}" if len(ranks) > SHOWN_RANKS else ""
    return f"{numbers(ranks[:SHOWN_RANKS], 'rank')}{more}"


def _host(summaries: Summaries, number: int) -> str:
    return next((rank.host for rank in summaries.ranks if rank.rank == number), "unknown")
