"""Terms that grow from step to step, so that a training becomes slower and slower."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traincope.arrays import Ints

PARTS = 10
MIN_STEPS = 60
"""Fewest steps that are compared. The thresholds here are ours."""
TIMES = 2.0
"""The last part of a term must be this many times as long as its first."""
RISES = 8
"""Fewest times that a part must be longer than the one before it. Of the 10! orders of ten parts, 1,014 have as many
rises (Eulerian numbers): 1 in 3,579.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growing:
    """Mean time of a term per step, in the first and the last tenth of a run's steps and in all of them."""

    first_ns: int
    last_ns: int
    mean_ns: int

    @property
    def first_ratio(self) -> float:
        """What is left of the term, if every step had as much of it as the first tenth."""
        return self.first_ns / self.mean_ns


def growing(ns: Ints) -> Growing | None:
    """Return how a term grows; None if it does not grow steadily. `ns`: its time in each step, in order."""
    if len(ns) < MIN_STEPS:
        return None
    parts = [float(np.mean(part)) for part in np.array_split(ns, PARTS)]
    rises = sum(later > before for before, later in pairwise(parts))
    if rises < RISES or parts[-1] < TIMES * max(parts[0], 1.0):
        return None
    return Growing(first_ns=round(parts[0]), last_ns=round(parts[-1]), mean_ns=round(float(np.mean(ns))))
