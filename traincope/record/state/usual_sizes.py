"""The usual sizes of a training's values, and the first one of a step that is far above them."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from traincope.arrays import Floats

RECENT = 32
"""Number of steps before, with whose largest size a value is compared."""
MIN_STEPS = 16
"""Fewest steps that show what is usual."""
FACTOR = 8.0
"""Multiple of the largest recent size from which on a value is far above it. It leaves out the tails of gradients."""


class UsualSizes:
    """Largest sizes of the same values in the latest steps."""

    def __init__(self) -> None:
        self._places: Sequence[tuple[str, str]] = ()
        self._recent: deque[Floats] = deque(maxlen=RECENT)

    def first_jump(self, places: Sequence[tuple[str, str]], sizes: Floats) -> tuple[int, float] | None:
        """Return the position of a step's first value far above its usual size, and how many times that it is.

        The sizes become those of the latest step. Steps with other values than the one before begin anew.
        """
        if places != self._places:
            self._places = places
            self._recent.clear()
        usual = np.max(self._recent, axis=0) if len(self._recent) >= MIN_STEPS else np.zeros(len(sizes))
        self._recent.append(sizes)
        jumped = np.flatnonzero((usual > 0) & (sizes > FACTOR * usual))
        return (int(jumped[0]), float(sizes[jumped[0]] / usual[jumped[0]])) if len(jumped) else None
