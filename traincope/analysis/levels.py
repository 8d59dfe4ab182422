"""Steps in which the recorder's level was lowered so far that no communication was recorded."""

from collections.abc import Iterator

from traincope.analysis.marks import RECORDER_LEVEL
from traincope.store.segments import own_events
from traincope.timeline import RankTimeline, Timeline

WATCHED_FROM = 1
"""The lowest level at which collectives are recorded."""
END_OF_TIME_NS = 1 << 62


def unwatched_steps(timeline: Timeline, *, among: frozenset[int]) -> frozenset[int]:
    """Those `among` these steps in which some rank was below `WATCHED_FROM`; none where there are no others."""
    found = frozenset(number for rank in timeline.ranks for number in _unwatched(timeline, rank)) & among
    return found if found < among else frozenset()


def _unwatched(timeline: Timeline, rank: RankTimeline) -> Iterator[int]:
    below = list(_below(timeline, rank))
    for step in rank.steps if below else ():
        if any(step.start_ns < until_ns and since_ns < step.end_ns for since_ns, until_ns in below):
            yield step.number


def _below(timeline: Timeline, rank: RankTimeline) -> Iterator[tuple[int, int]]:
    """From when until when; a run that was at level 0 all the time says nothing of it."""
    details = next(one.details for one in timeline.run.ranks if one.rank == rank.rank)
    since_ns = 0
    level = WATCHED_FROM
    for event in own_events(rank.main):
        told = details.get(int(event["group"]), {})
        was, now = told.get("was"), told.get("level")
        if rank.name(int(event["name"])) != RECORDER_LEVEL or type(was) is not int or type(now) is not int:
            continue  # not its own, or from a damaged file
        if was < WATCHED_FROM <= now:
            yield since_ns, int(event["start_ns"])
        elif now < WATCHED_FROM <= was:
            since_ns = int(event["start_ns"])
        level = now
    if level < WATCHED_FROM:
        yield since_ns, END_OF_TIME_NS
