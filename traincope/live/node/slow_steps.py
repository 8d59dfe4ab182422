"""Detection of steps that took far longer than those before them. One window is too short to judge by."""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from traincope.analysis.faults.slowness import limit_ns

NUM_REMEMBERED = 256
"""Number of earlier steps with which a new one is compared."""


class SlowSteps:
    """Lengths of the latest steps, each on the rank where it took longest."""

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
