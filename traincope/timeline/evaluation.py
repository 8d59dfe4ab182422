"""When a rank evaluated: a regime of its own, which is no part of any step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.store.evaluating import evaluated
from traincope.timeline.timeline import RankTimeline

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluations:
    """Intervals [start, end) that do not overlap, in order."""

    starts_ns: Ints
    ends_ns: Ints

    def cover(self, times_ns: Ints) -> NDArray[np.bool_]:
        """Whether each instant lies in one of them."""
        at = np.searchsorted(self.starts_ns, times_ns, side="right") - 1
        covered: NDArray[np.bool_] = (at >= 0) & (times_ns < np.append(self.ends_ns, 0)[at])
        return covered


def evaluations(rank: RankTimeline) -> Evaluations:
    """Of the training thread, as `store.evaluating` finds them."""
    starts, ends = evaluated(rank.main, last_ns=rank.last_ns).T
    return Evaluations(starts_ns=starts, ends_ns=ends)
