"""Hangs that an agent announced while the ranks stood still, for records that show the culprit no longer.

The end of a job that hangs adds evidence that misleads: a launcher, a timeout of the communication or a person ends the
ranks, one after the other, and their errors are later than the hang. On one host alone, copies of other hosts' ranks
become too old. The agent's answer is of the time of the hang.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincope.analysis.confidence import HIGH, MEDIUM, UNKNOWN
from traincope.analysis.faults.hangs.hang import Hang, HangKind
from traincope.analysis.ledger.coverage import consecutive_ranges
from traincope.events import CLEAN, END_OF_TIME_NS, Flag, Kind, Phase
from traincope.store.job.hang_notices import HangNotice, Progress, StopState, stands
from traincope.store.segments.segments import last_progress_ns
from traincope.timeline import RankTimeline, Timeline
from traincope.units import duration, numbers

NOTED = "an agent noted it at that time"
GAVE_UP = "these ended their runs in that step, after an error that they caught"
MAX_RANGES, MAX_CHARACTERS = 64, 2000
"""Ranges of ranks, and length of a sentence, in an announcement. On a shared directory each host appends one."""


def noticed_hang(timeline: Timeline) -> Hang | None:
    """The announced hang that still stands, by its newest announcement; None without one.

    An announcement stands (`store.job.hang_notices.stands`) by the records of the ranks and their copies, and if the
    run did not end cleanly. A hang that began after the one that stands is its consequence.
    """
    known = progress(timeline)
    newest: Hang | None = None
    for notice in sorted(timeline.run.notices, key=lambda notice: notice.at_wall_ns):
        hang = _hang(notice, world_size=timeline.run.info.world_size)
        if hang is None or not stands(notice, known) or _ended_cleanly(timeline, hang):
            continue
        if newest is None or newest.until_ns is None or hang.since_ns <= newest.until_ns:
            newest = hang
    return newest


def stops_that_ended(timeline: Timeline) -> Iterator[Hang]:
    """The announced stops of a rank after which the job went on by itself, in order. Without the agent's note of its
    end, a stop lasted at least as long as it was announced.
    """
    known = progress(timeline)
    for notice, hang in _announced_stops(timeline):
        if not _victims_gave_up(timeline, hang) and (not stands(notice, known) or _ended_cleanly(timeline, hang)):
            least = "" if notice.state == StopState.OVER else "at least "
            evidence = _evidence(hang, "then the job went on", least=least)
            yield replace(hang, state=StopState.OVER, cannot_go_on=None, evidence=evidence)


def stops_that_ended_the_job(timeline: Timeline) -> Iterator[Hang]:
    """The announced stops of a rank in which the others ended their runs cleanly: they caught their errors."""
    for _, hang in _announced_stops(timeline):
        if _victims_gave_up(timeline, hang):
            until_ns = max(rank.last_ns for rank in timeline.ranks if rank.rank in hang.victims)
            whole = replace(hang, state=StopState.HANG, until_ns=until_ns, cannot_go_on=GAVE_UP)
            yield replace(whole, evidence=_evidence(whole, GAVE_UP))


def _announced_stops(timeline: Timeline) -> Iterable[tuple[HangNotice, Hang]]:
    """The newest judgement of each stop of a rank."""
    newest: dict[int, tuple[HangNotice, Hang]] = {}
    for notice in sorted(timeline.run.notices, key=lambda notice: notice.at_wall_ns):
        hang = _hang(notice, world_size=timeline.run.info.world_size)
        if hang is not None and hang.kind is HangKind.STUCK:
            overlapping = [at for at, (_, before) in newest.items() if hang.since_ns <= (before.until_ns or 0)]
            newest[overlapping[-1] if overlapping else hang.since_ns] = (notice, hang)
    return newest.values()


def _victims_gave_up(timeline: Timeline, hang: Hang) -> bool:
    victims = [rank for rank in timeline.ranks if rank.rank in hang.victims]
    return bool(victims) and all(_gave_up(rank, at_ns=hang.until_ns or 0) for rank in victims)


def _gave_up(rank: RankTimeline, *, at_ns: int) -> bool:
    """True if the rank ended its run cleanly in the step in which it waited at this time: the training caught the error
    of its communication. Work after a last step, such as a barrier at the end, is no step.
    """
    records = rank.main
    updated = (records["kind"] == Kind.PHASE) & (records["phase"] == Phase.OPTIMIZER) & (records["start_ns"] > at_ns)
    if rank.ending != CLEAN or updated.any():
        return False
    inside = records[(records["start_ns"] <= at_ns) & (records["end_ns"] > at_ns)]
    failed = (inside["kind"] == Kind.COLLECTIVE) & (inside["flags"] & Flag.RAISED > 0)
    backward = inside[(inside["kind"] == Kind.PHASE) & (inside["phase"] == Phase.BACKWARD)]
    return bool(failed.any()) or len(backward) > 0


def _evidence(hang: Hang, end: str, *, least: str = "") -> str:
    where = f"at {hang.call_site}" if hang.call_site is not None else f"({hang.doing})" if hang.doing else ""
    stood = " ".join(part for part in (numbers(hang.culprits, "rank"), "stood", where) if part)
    waited = f"; {numbers(hang.victims, 'rank')} waited for it" if hang.victims else ""
    inside = f" in {hang.collective} on {hang.axis}" if waited and hang.collective and hang.axis else ""
    return f"{stood} for {least}{duration(hang.lasted_ns or 0)}{waited}{inside}; {end}"


def progress(timeline: Timeline) -> Progress:
    """What the ranks have done, by their own records and by copies of them."""
    going = [rank for rank in timeline.ranks if rank.ending != CLEAN]
    moved_ns: dict[int, int] = {}
    for rank in (*timeline.ranks, *timeline.witnessed):
        at_ns = last_progress_ns(rank.main, raised=rank.ending not in (None, CLEAN))
        moved_ns[rank.rank] = max(moved_ns.get(rank.rank, 0), at_ns)
    return Progress(
        next_steps={rank.rank: rank.steps[-1].number + 1 if rank.steps else 0 for rank in going},
        last_step_ns=max((rank.steps[-1].end_ns for rank in timeline.ranks if rank.steps), default=None),
        moved_ns=moved_ns,
    )


def with_noticed(result: Sequence[Hang], noticed: Hang | None) -> tuple[Hang, ...]:
    """The announced hang, unless the records still decide who caused a hang that began before its announcement."""
    if noticed is None or noticed.until_ns is None:
        return tuple(result)
    decided = (hang for hang in result if hang.culprits or hang.kind in (HangKind.NONE_COMPLETES, HangKind.LOST_HOST))
    if any(hang.since_ns <= noticed.until_ns for hang in decided):
        return tuple(result)
    return (replace(noticed, evidence=f"{noticed.evidence}; {NOTED}"),)


def announced(hang: Mapping[str, Any], *, before: Iterable[HangNotice]) -> dict[str, Any]:
    """Shorten a hang's JSON for its announcement, to a bounded size; return nothing if the newest kept judgement among
    the notices `before` is of the same culprits, state and time. Ranks are kept as ranges [first, last]; no victim and
    no suspect if they have more than `MAX_RANGES`.
    """
    newest = max((notice for notice in before if notice.judged), key=lambda notice: notice.at_wall_ns, default=None)
    same = newest is not None and newest.judged.get("state") == hang.get("state")
    if same and newest is not None and newest.culprits == tuple(hang["culprits"]):
        since_ns, lasted_ns = (newest.judged.get(name) for name in ("since", "lasted_ns"))
        if type(since_ns) is int and type(lasted_ns) is int and hang["since"] <= since_ns + lasted_ns:
            return {}
    kept = {name: in_brief(value) if isinstance(value, str) else value for name, value in hang.items()}
    del kept["culprits"]  # the notice has them
    for name in ("victims", "suspects"):
        ranges = consecutive_ranges(hang.get(name, ()))
        kept[name] = ranges if len(ranges) <= MAX_RANGES else ()
    return kept


def in_brief(sentence: str) -> str:
    """Cut the sentence to `MAX_CHARACTERS`."""
    return sentence if len(sentence) <= MAX_CHARACTERS else f"{sentence[: MAX_CHARACTERS - 4]} ..."


def _ended_cleanly(timeline: Timeline, hang: Hang) -> bool:
    """True if the run ended cleanly. On the culprits' host alone that shows nothing if their clean end is the hang."""
    waited_elsewhere = hang.kind is HangKind.LEFT and timeline.run.missing
    return not waited_elsewhere and {rank.ending for rank in timeline.ranks} == {CLEAN}


def _hang(notice: HangNotice, *, world_size: int) -> Hang | None:
    """None for a notice without a culprit or without a judgement, and for a damaged one."""
    judged = notice.judged
    try:
        since_ns, lasted_ns = int(judged["since"]), int(judged["lasted_ns"])
        noticed = judged["detected_after_seconds"]
        hang = Hang(
            kind=HangKind(judged["kind"]),
            state=StopState(judged.get("state", StopState.HANG)),
            cannot_go_on=_text(judged.get("cannot_go_on")),
            culprits=notice.culprits,
            host=_text(judged["host"]),
            victims=tuple(_ranks(judged["victims"], world_size=world_size)),
            group=_text(judged["group"]),
            axis=_text(judged["axis"]),
            collective=_text(judged["collective"]),
            step=None if judged["step"] is None else int(judged["step"]),
            call_site=_text(judged["call_site"]),
            stack=tuple(map(str, judged["stack"])),
            doing=_text(judged["doing"]),
            since_ns=since_ns,
            until_ns=since_ns + lasted_ns,
            noticed_ns=None if noticed is None else since_ns + round(1e9 * noticed),
            confidence=str(judged["confidence"]),
            evidence=str(judged["evidence"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return hang if _is_possible(hang, world_size=world_size) else None


def _is_possible(hang: Hang, *, world_size: int) -> bool:
    """False if no record and no rank of the run can have these values."""
    times_ns = (hang.since_ns, hang.until_ns or 0, hang.noticed_ns or 0, hang.step or 0)
    return (
        bool(hang.culprits)
        and all(0 <= rank < world_size for rank in hang.culprits)
        and all(abs(time_ns) < END_OF_TIME_NS for time_ns in times_ns)
        and (hang.lasted_ns or 0) >= 0
        and hang.confidence in (HIGH, MEDIUM, UNKNOWN)
    )


def _ranks(ranges: Iterable[object], *, world_size: int) -> Iterator[int]:
    """Ranks of ranges, or of an earlier version's list. Raises ValueError if the run does not have them."""
    for each in ranges:
        first, last = map(int, each) if isinstance(each, list | tuple) else (int(str(each)),) * 2
        if not 0 <= first <= last < world_size:
            raise ValueError(f"ranks {first}-{last} of {world_size}")
        yield from range(first, last + 1)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
