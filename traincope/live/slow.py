"""Steps that took far longer than those before them: a window alone is too short to tell."""

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from traincope.analysis.slowness import limit_ns

REMEMBERED = 256
"""Steps by which a new one is judged."""


class SlowSteps:
    """Remembers how long the latest steps took on the rank where they took most."""

    def __init__(self, lengths_ns: Iterable[int]) -> None:
        """`lengths_ns`: of the steps before, the latest last."""
        self._lengths: deque[int] = deque(lengths_ns, maxlen=REMEMBERED)

    def judge(self, lengths_ns: Sequence[int]) -> list[float | None]:
        """Times the median that each took, by those before them all; None: it is no slow step. They are remembered."""
        before = np.array(self._lengths, dtype=np.int64)
        self._lengths.extend(lengths_ns)
        limit = limit_ns(before)
        if limit is None:
            return [None] * len(lengths_ns)
        usual = float(np.median(before))
        return [length / usual if length > limit else None for length in lengths_ns]
