"""Lost hosts: hosts that stopped answering the agent of another host, and what their ranks were in.

The evidence is silence: the host's agent had sent a sign of life every second and took no leave, and the witness
listened for seconds more. It shows that the host or its network failed, not which of its ranks. Two things speak
against it: a rank of another host that completed steps later, and records of the host's own ranks that are later. If
the host's kernel closed the connection, only the agent is known to have ended.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from traincope.analysis.confidence import MEDIUM, UNKNOWN
from traincope.analysis.faults.endings import last_activity
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.faults.hangs.hang import Hang, HangKind
from traincope.events import CLEAN
from traincope.store.job.witness import Heard
from traincope.timeline import RankTimeline, Timeline
from traincope.topology import Host
from traincope.units import numbers

SILENCE_NS = 5_000_000_000
"""Shortest silence that counts. The host's agent sends a sign of life every second."""
MAX_LATER_NS = 6_000_000_000
"""A step that ends this much later than the last sign of life shows that the host was alive: signs come every second,
and hosts' wall clocks may differ by some seconds."""
MAX_NAMED = 4
"""With more kinds of activity than this, the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostHost:
    """One host that was lost."""

    host: Host
    witness: Host
    ranks: tuple[int, ...]
    heard_ns: int
    """The last sign of life, by the wall clock of the witness."""
    silent_ns: int
    """How long the witness listened after it."""
    step: int | None
    """Step of its ranks at their last record; None outside of steps, or if they were in different ones."""
    activity: str
    """The innermost intervals that its ranks were in."""
    confidence: str
    """`medium`: silence is one kind of evidence. `unknown` if the host's kernel still closed the connection."""

    @property
    def what(self) -> str:
        return f"host {self.host.name} {'may be' if self.confidence == UNKNOWN else 'was'} lost"

    def sentence(self, *, start_ns: int) -> str:
        """All that is known. `start_ns`: the run's first record."""
        after_s = (self.heard_ns - start_ns) / 1e9
        return (
            f"{self.what}; last heard of {after_s:.1f} s after the run's first record; its ranks were in "
            f"{self.activity}; {self.evidence}"
        )

    @property
    def evidence(self) -> str:
        answer = "its agent ended without taking leave" if self.confidence == UNKNOWN else "it did not answer"
        return (
            f"the agent of host {self.witness.name} listened to it for {self.silent_ns / 1e9:.0f} s after its last "
            f"sign of life: {answer}"
        )


def lost_hosts(timeline: Timeline) -> tuple[LostHost, ...]:
    """Find the hosts of the last attempt that were lost. One entry per host, by the time of the last sign of life."""
    if timeline.ranks and all(rank.ending == CLEAN for rank in timeline.ranks):
        return ()
    of_hosts: dict[Host, list[Heard]] = {}
    for witnessed in timeline.run.witnessed:
        of_hosts.setdefault(witnessed.heard.host, []).append(witnessed.heard)
    lost = [host for notes in of_hosts.values() if (host := _lost(timeline, _decisive(notes))) is not None]
    return tuple(sorted(lost, key=lambda host: host.heard_ns))


def _decisive(notes: Sequence[Heard]) -> Heard:
    """The note that decides about a host of which several witnesses have notes: that of a leave, whatever its clock.

    Otherwise it is, of the latest notes, one of a closed connection, then the one of the longest silence. Times by
    different wall clocks do not order the last seconds.

    An agent takes leave once, at the end of its ranks. A second agent of the host in the same attempt, for ranks that
    began after that, is not called lost then.
    """
    since_ns = max(heard.heard_wall_ns for heard in notes) - MAX_LATER_NS
    deciding = [heard for heard in notes if heard.farewell or heard.heard_wall_ns >= since_ns]
    return max(deciding, key=lambda heard: (heard.farewell, heard.closed, heard.silent_ns))


def unexplained(hosts: Iterable[LostHost], hangs: Sequence[Hang]) -> Iterator[LostHost]:
    """The lost hosts that are no cause of these hangs."""
    named = {hang.fault_ranks for hang in hangs if hang.kind is HangKind.LOST_HOST}
    return (host for host in hosts if host.ranks not in named)


def hung_before(hosts: Sequence[LostHost], hangs: Sequence[Hang]) -> bool:
    """True if all these hosts still answered after the culprit of a hang was known."""
    known_ns = [hang.until_ns for hang in hangs if hang.culprits and hang.until_ns is not None]
    return bool(hosts and known_ns) and min(known_ns) < min(host.heard_ns for host in hosts)


def lost_host_faults(timeline: Timeline, hangs: Sequence[Hang] = ()) -> Iterator[Fault]:
    """One fault per lost host, except those that the hangs name."""
    for host in unexplained(lost_hosts(timeline), hangs):
        yield Fault(
            kind=FaultKind.LOST_HOST,
            at_ns=host.heard_ns,
            ranks=host.ranks,
            step=host.step,
            what=f"{host.what}; its ranks were in {host.activity}",
            evidence=host.evidence,
            confidence=host.confidence,
        )


def _lost(timeline: Timeline, heard: Heard) -> LostHost | None:
    if heard.farewell or heard.silent_ns < SILENCE_NS:
        return None
    ranks = _ranks_of(timeline, heard.host)
    if not ranks or any(rank.ending is not None for rank in ranks) or _lived_on(timeline, ranks, heard):
        return None
    steps = {rank.open_step for rank in ranks}
    return LostHost(
        host=heard.host,
        witness=heard.witness,
        ranks=tuple(rank.rank for rank in ranks),
        heard_ns=heard.heard_wall_ns,
        silent_ns=heard.silent_ns,
        step=steps.pop() if len(steps) == 1 else None,
        activity=_activity(ranks),
        confidence=UNKNOWN if heard.closed else MEDIUM,
    )


def _ranks_of(timeline: Timeline, host: Host) -> tuple[RankTimeline, ...]:
    """The ranks of the host, each by its longest records."""
    copies = (copy for witnessed in timeline.run.witnessed for copy in witnessed.ranks)
    of_host = {records.rank for records in (*timeline.run.ranks, *copies) if records.info.host == host}
    longest = {rank.rank: rank for rank in (*timeline.ranks, *timeline.witnessed)}
    return tuple(longest[rank] for rank in sorted(of_host) if rank in longest)


def _lived_on(timeline: Timeline, ranks: tuple[RankTimeline, ...], heard: Heard) -> bool:
    """True if the job shows that the host was alive after its last sign of life."""
    of_host, limit_ns = {rank.rank for rank in ranks}, heard.heard_wall_ns + MAX_LATER_NS
    running = {rank.rank for rank in timeline.run.ranks if rank.running}
    others = [rank for rank in timeline.ranks if rank.rank not in of_host]
    stepped = any(rank.steps and rank.steps[-1].end_ns > limit_ns for rank in others)
    return stepped or bool(of_host & running) or any(rank.last_ns > limit_ns for rank in ranks)


def _activity(ranks: tuple[RankTimeline, ...]) -> str:
    """Name the intervals that the ranks were in, equal ones once: "all_reduce on dp, step 41 (ranks 2, 3)"."""
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(_where(rank), []).append(rank.rank)
    named = [f"{where} ({numbers(of, 'rank')})" for where, of in list(groups.items())[:MAX_NAMED]]
    more = [f"{len(groups) - MAX_NAMED} more"] if len(groups) > MAX_NAMED else []
    return "; ".join([*named, *more])


def _where(rank: RankTimeline) -> str:
    step = "" if rank.open_step is None else f", step {rank.open_step}"
    return last_activity(rank) + step
