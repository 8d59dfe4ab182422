"""Lateness of wake-ups on this machine, measured in the background of a pipeline of sleeps, to detect disturbance.

It reads neither the pipeline nor its record, so it cannot prefer a measurement for its result.
"""

import time
from collections.abc import Sequence

from evaluation.truth.machines.beside import Background

TICK_SECONDS = 0.002
LATE_SECONDS = 0.0005
"""A fortieth of an action's unit; later ends count as late."""
DISTURBED = 0.05
"""Share of late ticks. Durations are medians: 5 % of late ticks do not change them, 10 % did."""


def late_ratio(late_seconds: Sequence[float]) -> float:
    """Share of wake-ups later than `LATE_SECONDS`; 0 without wake-ups."""
    return sum(late > LATE_SECONDS for late in late_seconds) / max(len(late_seconds), 1)


class Sleeper(Background):
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
