"""Process groups that some ranks did not make, or made alone, while the others wait for them in `new_group`.

All ranks must call `new_group` for each group, also for those without them: torch names a group by how many there were
before, and its members meet by that name. No collective is recorded of this wait. Each call has a span with torch's
number of its group, so the last numbers of the ranks compare.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.faults import Fault
from traincope.analysis.faults.hangs.evidence.calls import RankCalls
from traincope.analysis.faults.hangs.evidence.patience import patience
from traincope.analysis.faults.hangs.evidence.standing import on_axis
from traincope.analysis.faults.hangs.hang import Differs, Hang, HangKind
from traincope.analysis.faults.hangs.stops import ended_by_itself
from traincope.events import NEW_GROUP, NO_STEP, OPEN, Flag, Kind
from traincope.timeline import RankTimeline, Timeline
from traincope.units import numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """One call of `new_group` on one rank."""

    number: int
    """Torch's number of the group."""
    site: str
    """The line, with ` at ` before and the function after it; empty if it is unknown."""
    step: int
    start_ns: int
    end_ns: int
    """OPEN without a recorded end."""
    raised: bool

    @property
    def unfinished(self) -> bool:
        return self.raised or self.end_ns == OPEN


def unmade_group(timeline: Timeline, latest: Mapping[int, RankCalls], ends: Sequence[Fault]) -> Hang | None:
    """Find ranks that made another number of groups than most ranks, which wait in `new_group`; None if there are none,
    or if a rank is not known to wait.

    `latest` and `ends`: of the same timeline.
    """
    made = {rank.rank: _made(rank) for rank in timeline.ranks}
    inside = {rank: calls[-1] for rank, calls in made.items() if calls and calls[-1].unfinished}
    lost = timeline.run.missing or any(rank.dropped for rank in timeline.run.ranks)
    last = {rank: calls[-1].number if calls else 0 for rank, calls in made.items()}
    if lost or not inside or len({*last.values()}) < 2:
        return None
    failed = {rank for end in ends if not end.of_communication and ended_by_itself(end) for rank in end.ranks}
    waits = {rank for rank, calls in latest.items() if calls.outstanding} | set(inside)
    if failed - set(inside) or not set(made) <= waits:
        return None
    (usual, votes), *_ = Counter(last.values()).most_common()
    decided = 2 * votes > len(made)
    usual = usual if decided else max(last.values())
    odd = tuple(rank for rank, number in sorted(last.items()) if number != usual)
    first = _first_difference(made, odd)
    over = any(ended_by_itself(end) for end in ends)
    return None if first is None else _hang(timeline, made, inside, odd, first, decided=decided, over=over)


def _made(rank: RankTimeline) -> tuple[_Made, ...]:
    spans = rank.of_kind(Kind.SPAN)
    return tuple(
        _Made(
            number=int(span["sequence"]),
            site=_site(rank.name(int(span["name"]))),
            step=int(span["step"]),
            start_ns=int(span["start_ns"]),
            end_ns=int(span["end_ns"]),
            raised=bool(span["flags"] & Flag.RAISED),
        )
        for span in spans[spans["sequence"] > 0]
    )


def _site(name: str) -> str:
    """Return what follows the function's name. A redacted copy has a word in place of both."""
    return name.removeprefix(NEW_GROUP) if name.startswith(NEW_GROUP) else f" {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """A call that the odd ranks left out, or made alone."""

    call: _Made
    alone: bool


def _first_difference(made: Mapping[int, tuple[_Made, ...]], odd: Sequence[int]) -> _Difference | None:
    """Find the first number at which the first odd rank made another group than most ranks, or none; None if the
    records do not show it, or if what it made is the begin of what most made: then it may not have come there yet.
    """
    most = next(calls for rank, calls in made.items() if rank not in odd)
    of_most, of_odd = ({call.number: call for call in calls} for calls in (most, made[odd[0]]))
    alone = max(of_odd, default=0) > max(of_most, default=0)
    longer, shorter, waits_there = (of_odd, of_most, most[-1:]) if alone else (of_most, of_odd, made[odd[0]][-1:])
    for number, call in sorted(longer.items()):
        other = shorter.get(number)
        if other is None and waits_there and waits_there[0].unfinished:
            return None
        if other is None or other.site != call.site:
            return _Difference(call=call, alone=alone)
    return None


def _hang(
    timeline: Timeline,
    made: Mapping[int, tuple[_Made, ...]],
    inside: Mapping[int, _Made],
    odd: tuple[int, ...],
    first: _Difference,
    *,
    decided: bool,
    over: bool,
) -> Hang | None:
    """`over`: an end of a rank shows the stop; an end from outside does not, however soon it came."""
    since_ns, until_ns = max(call.start_ns for call in inside.values()), _until_ns(timeline, inside)
    over = over or any(call.raised for call in inside.values())
    if until_ns is None or (not over and until_ns - since_ns < patience(timeline).training_ns):
        return None
    culprits, culprit = odd if decided else (), inside.get(odd[0]) if decided else None
    certain = HIGH if {*odd} <= inside.keys() else MEDIUM
    return Hang(
        kind=HangKind.MISMATCH,
        culprits=culprits,
        suspects=() if decided else tuple(sorted(made)),
        victims=tuple(sorted(made.keys() - {*odd})) if decided else (),
        collective=NEW_GROUP,
        step=None if first.call.step == NO_STEP else first.call.step,
        call_site=None if culprit is None else _line(culprit.site),
        doing=None if culprit is None else f"in {NEW_GROUP}",
        since_ns=since_ns,
        until_ns=until_ns,
        differs=Differs.GROUPS,
        confidence=certain if decided else UNKNOWN,
        cannot_go_on="ranks that made different numbers of groups do not meet",
        evidence=_evidence(odd, inside, first),
    )


def _evidence(odd: tuple[int, ...], inside: Mapping[int, _Made], first: _Difference) -> str:
    where = f"{NEW_GROUP}{first.call.site}"
    when = "" if first.call.step == NO_STEP else f" in step {first.call.step}"
    called = f"called {where}{when}, and the others did not"
    did = called if first.alone else f"did not call {where} as the others{when}"
    by_site: dict[str, list[int]] = {}
    for rank, call in sorted(inside.items()):
        by_site.setdefault(call.site, []).append(rank)
    waited = "; ".join(f"{numbers(ranks, 'rank')} waited in {NEW_GROUP}{site}" for site, ranks in by_site.items())
    why = "torch names a group by how many a rank has made, so these ranks wait under different names"
    return f"{numbers(odd, 'rank')} {did}: {why}; {waited}"


def _line(site: str) -> str | None:
    """Return `train.py:9` of ` at train.py:9 (main)`."""
    return site.removeprefix(" at ").partition(" (")[0] or None


def _until_ns(timeline: Timeline, last: Mapping[int, _Made]) -> int | None:
    """Latest evidence of the wait: its end by an exception, the end of its rank, or a look at its process."""
    clocks = {clock.rank: clock for clock in timeline.clocks}
    looks = [
        look.at_ns
        for rank in timeline.run.ranks
        if rank.rank in last
        for look in on_axis(rank.looks, clocks.get(rank.rank))
    ]
    ended = [rank.last_ns for rank in timeline.ranks if rank.rank in last and rank.ending is not None]
    raised = [call.end_ns for call in last.values() if call.raised and call.end_ns != OPEN]
    return max([*raised, *looks, *ended], default=None)
