"""What of the steps was recorded, how their borders were found, and what recording them cost."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from traincope.analysis.levels import unwatched_steps
from traincope.timeline import RankTimeline, Timeline


def guessed_steps(timeline: Timeline) -> int:
    """Steps whose borders some rank found from what the training did, not by `run.step()`."""
    return len({step.number for rank in timeline.ranks for step in rank.steps if step.guessed})


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Numbers of steps that enter no sum of any rank, so that all sums are of the same steps."""

    warm_up: frozenset[int]
    """The first step of a run that has others: connections are made in it, memory is first touched."""
    dropped: frozenset[int]
    """Steps whose records some rank dropped between others that it has."""
    unwatched: frozenset[int] = frozenset()
    """Steps of whose communication some rank recorded nothing, for its level was lowered."""

    @property
    def numbers(self) -> frozenset[int]:
        return self.warm_up | self.dropped | self.unwatched


def left_out(timeline: Timeline) -> LeftOut:
    """Which of the steps that some rank completed do not count; the last of them always does."""
    numbers = {step.number for rank in timeline.ranks for step in rank.steps}
    gaps = dropped_steps(timeline)
    warm_up = frozenset({min(numbers)} if len(numbers) > 1 else ())
    dropped = frozenset(number for first, last in gaps for number in range(first, last + 1) if number in numbers)
    unwatched = unwatched_steps(timeline, among=frozenset(numbers - warm_up - dropped))
    return LeftOut(warm_up=warm_up, dropped=dropped, unwatched=unwatched)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTime:
    """CPU time that the recorder itself spent in complete steps."""

    total_ns: int
    """In all steps of all ranks."""
    per_step_ns: int
    """Mean of a rank's step."""
    ratio: float
    """Share of the steps' wall time."""


def own_time(timeline: Timeline) -> OwnTime | None:
    """None where nobody measured it."""
    steps = [step for rank in timeline.ranks for step in rank.steps]
    own_ns, wall_ns = sum(step.own_ns for step in steps), sum(step.end_ns - step.start_ns for step in steps)
    if not own_ns or not wall_ns:
        return None
    return OwnTime(total_ns=own_ns, per_step_ns=own_ns // len(steps), ratio=own_ns / wall_ns)


def dropped_steps(timeline: Timeline) -> tuple[tuple[int, int], ...]:
    """(first, last) of the steps that a rank lost between others it has; what several ranks lost is told once."""
    return _joined(gap for rank in timeline.ranks for gap in _gaps(rank))


def in_a_row(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """(first, last) of each unbroken row of them."""
    return _joined((number, number) for number in numbers)


def _joined(parts: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    joined: list[tuple[int, int]] = []
    for first, last in sorted(parts):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)


def _gaps(rank: RankTimeline) -> list[tuple[int, int]]:
    numbers = np.array([step.number for step in rank.steps], dtype=np.int64)
    before = np.flatnonzero(np.diff(numbers) > 1)
    return list(zip((numbers[before] + 1).tolist(), (numbers[before + 1] - 1).tolist(), strict=True))
