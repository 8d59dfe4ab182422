"""When a rank evaluated: a regime of its own, which is no part of any step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.events import OPEN, Flag, Kind, Phase
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
    """The training thread's records of evaluation, those that overlap as one."""
    records = rank.main
    marked = (records["phase"] == Phase.EVALUATION) & (records["flags"] & Flag.DEVICE == 0)
    chosen = records[marked & np.isin(records["kind"], (Kind.PHASE, Kind.ACTION))]
    ends = np.where(chosen["end_ns"] == OPEN, rank.last_ns, chosen["end_ns"])
    starts, reach = chosen["start_ns"], np.maximum.accumulate(ends)
    begins = np.ones(len(chosen), dtype=bool)
    begins[1:] = starts[1:] > reach[:-1]
    finishes = np.ones(len(chosen), dtype=bool)
    finishes[:-1] = begins[1:]
    return Evaluations(starts_ns=starts[begins], ends_ns=reach[finishes])
