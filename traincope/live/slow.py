"""Steps that took far longer than those before them: a window alone is too short to tell."""

from collections import deque
from collections.abc import Iterable

import numpy as np

from traincope.analysis.slowness import limit_ns

REMEMBERED = 256
"""Steps by which a new one is judged."""


class SlowSteps:
    """Remembers how long the latest steps took on the rank where they took most."""

    def __init__(self, lengths_ns: Iterable[int]) -> None:
        """`lengths_ns`: of the steps before, the latest last."""
        self._lengths: deque[int] = deque(lengths_ns, maxlen=REMEMBERED)

    def judge(self, length_ns: int) -> float | None:
        """Times the median that it took; None where it is no slow step. It is remembered either way."""
        lengths = np.array(self._lengths, dtype=np.int64)
        self._lengths.append(length_ns)
        limit = limit_ns(lengths)
        return None if limit is None or length_ns <= limit else length_ns / float(np.median(lengths))
