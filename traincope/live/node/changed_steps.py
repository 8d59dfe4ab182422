"""Detection of a step time that rose for good, from the latest steps. One window is too short to judge by."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from traincope.analysis.faults.step_changes import change_point

NUM_REMEMBERED = 256
"""Number of latest steps in which a change is looked for."""


class Rise(NamedTuple):
    """A lasting rise of the step time."""

    step: int
    """First step after it."""
    before_ns: float
    """Median of the steps before."""
    after_ns: float


class ChangedSteps:
    """Lengths of the latest steps since the last change, each on the rank where it took longest."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque(maxlen=NUM_REMEMBERED)

    def judge(self, steps: Iterable[tuple[int, int]]) -> Rise | None:
        """Add (step, ns) in order. Return a rise among the latest steps; None also if they became shorter."""
        self._steps.extend(steps)
        lengths = np.array([ns for _, ns in self._steps], dtype=np.float64)
        at = change_point(lengths)
        if at is None:
            return None
        before_ns, after_ns = float(np.median(lengths[:at])), float(np.median(lengths[at:]))
        step = self._steps[at][0]
        for _ in range(at):
            self._steps.popleft()
        return Rise(step, before_ns, after_ns) if after_ns > before_ns else None
