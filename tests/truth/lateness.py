"""How late this machine wakes a sleeper, measured beside a pipeline of sleeps: whether others disturbed that.

It looks neither at the pipeline nor at what was recorded of it, so it cannot prefer a measurement for its result.
"""

import time
from collections.abc import Sequence

from tests.truth.beside import Beside

TICK_SECONDS = 0.002
LATE_SECONDS = 0.0005
"""A fortieth of an action's unit: actions that end so late are told from those that end in time."""
DISTURBED = 0.05
"""Share of late ticks. Durations are medians: a twentieth of them does not move these, where a tenth was seen to."""


def late_ratio(late_seconds: Sequence[float]) -> float:
    """Share of those that are later than `LATE_SECONDS`; 0 of none."""
    return sum(late > LATE_SECONDS for late in late_seconds) / max(len(late_seconds), 1)


class Sleeper(Beside):
    """Sleeps tick by tick while its block runs."""

    def __init__(self) -> None:
        super().__init__("sleeper")
        self._late_seconds: list[float] = []

    @property
    def late_ratio(self) -> float:
        """Share of late ticks."""
        return late_ratio(self._late_seconds)

    def work(self) -> None:
        while not self.over.is_set():
            due = time.monotonic() + TICK_SECONDS
            time.sleep(TICK_SECONDS)
            self._late_seconds.append(time.monotonic() - due)
