"""Evaluation: the times in which a rank evaluates. They are not part of any step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints
from traincope.events import Phase
from traincope.store.segments.evaluating import evaluation_intervals
from traincope.timeline.timeline import LedgerClock, RankTimeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluations:
    """Evaluations of one rank: intervals [start, end) in order that do not overlap."""

    starts_ns: Ints
    ends_ns: Ints

    def cover(self, times_ns: Ints) -> NDArray[np.bool_]:
        """Return, for each instant, whether it lies in an evaluation."""
        at = np.searchsorted(self.starts_ns, times_ns, side="right") - 1
        covered: NDArray[np.bool_] = (at >= 0) & (times_ns < np.append(self.ends_ns, 0)[at])
        return covered


def evaluations(rank: RankTimeline) -> Evaluations:
    """Find the evaluations of the rank's training thread, as `store.segments.evaluating` defines them.

    Records of a GPU are evaluation or not, instant by instant.
    """
    if rank.ledger_clock is LedgerClock.DEVICE:
        evaluating = rank.main[rank.main["phase"] == Phase.EVALUATION]
        return Evaluations(starts_ns=evaluating["start_ns"], ends_ns=evaluating["end_ns"])
    starts, ends = evaluation_intervals(rank.main, last_ns=rank.last_ns).T
    return Evaluations(starts_ns=starts, ends_ns=ends)
