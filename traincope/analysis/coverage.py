"""What of the steps was recorded, how their borders were found, and what recording them cost."""

import numpy as np

from traincope.timeline import RankTimeline, Timeline


def guessed_steps(timeline: Timeline) -> int:
    """Steps whose borders some rank found from what the training did, not by `run.step()`."""
    return len({step.number for rank in timeline.ranks for step in rank.steps if step.guessed})


def own_time_ns(timeline: Timeline) -> int | None:
    """What the recorder itself spent in the complete steps of all ranks; None where nobody measured it."""
    return sum(step.own_ns for rank in timeline.ranks for step in rank.steps) or None


def dropped_steps(timeline: Timeline) -> tuple[tuple[int, int], ...]:
    """(first, last) of the steps that a rank lost between others it has; what several ranks lost is told once."""
    gaps = sorted(gap for rank in timeline.ranks for gap in _gaps(rank))
    joined: list[tuple[int, int]] = []
    for first, last in gaps:
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)


def _gaps(rank: RankTimeline) -> list[tuple[int, int]]:
    numbers = np.array([step.number for step in rank.steps], dtype=np.int64)
    before = np.flatnonzero(np.diff(numbers) > 1)
    return list(zip((numbers[before] + 1).tolist(), (numbers[before + 1] - 1).tolist(), strict=True))
