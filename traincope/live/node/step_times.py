"""Detection of steps that took far longer than those before them, and of a step time that rose for good.

One window is too short to judge by: both remember the latest steps, each on the rank where it took longest.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from traincope.analysis.faults.anomalies.slowness import limit_ns
from traincope.analysis.faults.anomalies.step_changes import change_point

NUM_REMEMBERED = 256
"""Number of latest steps that are remembered."""


class SlowSteps:
    """Lengths of the latest steps."""

    def __init__(self, lengths_ns: Iterable[int]) -> None:
        """`lengths_ns`: lengths of earlier steps, the latest last."""
        self._lengths: deque[int] = deque(lengths_ns, maxlen=NUM_REMEMBERED)

    def judge(self, lengths_ns: Sequence[int]) -> list[float | None]:
        """Compare each step with all before: its multiple of their median, or None if it is not slow.

        Remembers the lengths.
        """
        before = np.array(self._lengths, dtype=np.int64)
        self._lengths.extend(lengths_ns)
        limit = limit_ns(before)
        if limit is None:
            return [None] * len(lengths_ns)
        usual = float(np.median(before))
        return [length / usual if length > limit else None for length in lengths_ns]


class Rise(NamedTuple):
    """A lasting rise of the step time."""

    step: int
    """First step after it."""
    before_ns: float
    """Median of the steps before."""
    after_ns: float


class ChangedSteps:
    """Lengths of the latest steps since the last change."""

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
