"""Coverage of a run: excluded steps, steps with guessed borders, and the recorder's overhead."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from traincope.events import BLOCK_STEPS, END_OF_TIME_NS, FIRST_BLOCKS, RECORDER_LEVEL
from traincope.store.segments.segments import recorder_events
from traincope.timeline import RankTimeline, Timeline

COMMUNICATION_LEVEL = 1
"""The lowest level at which collectives are recorded."""
MIN_DRAWN_STEPS = 60
"""Fewest steps of drawn windows that stand for a run without its first windows: enough to name a straggler."""
LONG = 5.0
"""Length of a step of the first windows, in medians of the run's steps, above which it enters no sum."""


def guessed_steps(timeline: Timeline) -> int:
    """Count the steps whose borders some rank guessed from the training's actions, without `run.step()`."""
    return len({step.number for rank in timeline.ranks for step in rank.steps if step.guessed})


def backward_steps(timeline: Timeline) -> int:
    """Count the steps without a certain sign of an update on some rank: the true number of steps is unknown."""
    return len({step.number for rank in timeline.ranks for step in rank.steps if step.by_backward})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedSteps:
    """Numbers of the steps that enter no sum of any rank, so that all sums cover the same steps."""

    warm_up: frozenset[int]
    """The first step, if the run has others: it opens connections and touches memory for the first time. A profiler
    begins later.
    """
    dropped: frozenset[int]
    """Steps whose records some rank dropped between other steps that it has."""
    unwatched: frozenset[int] = frozenset()
    """Steps in which some rank recorded no communication: it was between windows, or its level was lowered."""
    requested: frozenset[int] = frozenset()
    """Steps with detail that a person or an anomaly chose: no sample of the run."""
    early: frozenset[int] = frozenset()
    """Steps of the first windows, which the recorder always takes, in a run that is recorded in drawn windows: all if
    these are enough, otherwise long ones. A run begins unlike it continues, for example with compilations.
    """

    @property
    def numbers(self) -> frozenset[int]:
        return self.warm_up | self.dropped | self.light

    @property
    def light(self) -> frozenset[int]:
        """Steps of which only what every step records enters a result."""
        return (self.unwatched | self.requested | self.early) - self.warm_up - self.dropped


def find_excluded_steps(timeline: Timeline) -> ExcludedSteps:
    """Find the excluded steps among those that some rank completed. At least one step always remains."""
    numbers = {step.number for rank in timeline.ranks for step in rank.steps}
    gaps = dropped_steps(timeline)
    warm_up = frozenset({min(numbers)} if len(numbers) > 1 and not timeline.run.info.imported else ())
    dropped = frozenset(number for first, last in gaps for number in range(first, last + 1) if number in numbers)
    complete = frozenset(numbers - warm_up - dropped)
    unwatched = _unless_all(undetailed_steps(timeline), among=complete)
    requested = _unless_all(frozenset(timeline.requested_steps), among=complete - unwatched)
    early = _early_steps(timeline, complete - unwatched - requested, unwatched=unwatched)
    return ExcludedSteps(warm_up=warm_up, dropped=dropped, unwatched=unwatched, requested=requested, early=early)


def _early_steps(timeline: Timeline, sampled: frozenset[int], *, unwatched: frozenset[int]) -> frozenset[int]:
    """Return the sampled steps of the first windows that would count for more than their share of the run."""
    early = frozenset(number for number in sampled if number < FIRST_BLOCKS * BLOCK_STEPS)
    if len(sampled) >= len(unwatched):
        return frozenset()
    if len(sampled - early) >= MIN_DRAWN_STEPS:
        return early
    steps = [step for rank in timeline.ranks for step in rank.steps]
    long_ns = LONG * float(np.median([step.length_ns for step in steps]))
    return _unless_all(frozenset(step.number for step in steps if step.length_ns > long_ns) & early, among=sampled)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderOverhead:
    """CPU time of the recorder in complete steps."""

    total_ns: int
    """In all steps of all ranks."""
    per_step_ns: int
    """Mean per step of a rank."""
    ratio: float
    """Share of the steps' wall time."""


def recorder_overhead(timeline: Timeline) -> RecorderOverhead | None:
    """Sum the recorder's CPU time; None if it was not measured."""
    steps = [step for rank in timeline.ranks for step in rank.steps]
    own_ns, wall_ns = sum(step.own_ns for step in steps), sum(step.end_ns - step.start_ns for step in steps)
    if not own_ns or not wall_ns:
        return None
    return RecorderOverhead(total_ns=own_ns, per_step_ns=own_ns // len(steps), ratio=own_ns / wall_ns)


def dropped_steps(timeline: Timeline) -> tuple[tuple[int, int], ...]:
    """Return (first, last) of the steps that any rank lost between other steps that it has.

    The steps of an imported table need not follow each other.
    """
    if timeline.run.operations is not None:
        return ()
    return _merged(gap for rank in timeline.ranks for gap in _gaps(rank))


def consecutive_ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return (first, last) of each range of consecutive numbers."""
    return _merged((number, number) for number in numbers)


def _merged(parts: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(parts):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _gaps(rank: RankTimeline) -> list[tuple[int, int]]:
    numbers = np.array([step.number for step in rank.steps], dtype=np.int64)
    before = np.flatnonzero(np.diff(numbers) > 1)
    return list(zip((numbers[before] + 1).tolist(), (numbers[before + 1] - 1).tolist(), strict=True))


def _unless_all(steps: frozenset[int], *, among: frozenset[int]) -> frozenset[int]:
    """Return the steps that are among the others; none if that would exclude all of these."""
    excluded = steps & among
    return excluded if excluded < among else frozenset()


def undetailed_steps(timeline: Timeline) -> frozenset[int]:
    """Return the steps without detail on some rank.

    Runs of older versions recorded every step alike, except while the level was below COMMUNICATION_LEVEL.
    """
    if not any(step.detailed for rank in timeline.ranks for step in rank.steps):
        return frozenset(number for rank in timeline.ranks for number in _unwatched(timeline, rank))
    return frozenset(step.number for rank in timeline.ranks for step in rank.steps if not step.detailed)


def _unwatched(timeline: Timeline, rank: RankTimeline) -> Iterator[int]:
    below = list(_times_below(timeline, rank))
    for step in rank.steps if below else ():
        if any(step.start_ns < until_ns and since_ns < step.end_ns for since_ns, until_ns in below):
            yield step.number


def _times_below(timeline: Timeline, rank: RankTimeline) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) of each time below COMMUNICATION_LEVEL. A run that stays at level 0 has no such time."""
    details = next(records.details for records in timeline.run.ranks if records.rank == rank.rank)
    since_ns = 0
    level = COMMUNICATION_LEVEL
    for event in recorder_events(rank.main):
        change = details.get(int(event["group"]), {})
        before, after = change.get("was"), change.get("level")
        if rank.name(int(event["name"])) != RECORDER_LEVEL or type(before) is not int or type(after) is not int:
            continue  # another event, or a damaged file
        if before < COMMUNICATION_LEVEL <= after:
            yield since_ns, int(event["start_ns"])
        elif after < COMMUNICATION_LEVEL <= before:
            since_ns = int(event["start_ns"])
        level = after
    if level < COMMUNICATION_LEVEL:
        yield since_ns, END_OF_TIME_NS
