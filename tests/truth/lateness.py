"""How late this machine wakes a sleeper, measured beside a pipeline of sleeps: whether others disturbed that.

It looks neither at the pipeline nor at what was recorded of it, so it cannot prefer a measurement for its result.
"""

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

TICK_SECONDS = 0.002
LATE_SECONDS = 0.0005
"""A fortieth of an action's unit: actions that end so late are told from those that end in time."""
DISTURBED = 0.05
"""Share of late ticks. Durations are medians: a twentieth of them does not move these, where a tenth was seen to."""


def late_ratio(late_seconds: Sequence[float]) -> float:
    """Share of those that are later than `LATE_SECONDS`; 0 of none."""
    return sum(late > LATE_SECONDS for late in late_seconds) / max(len(late_seconds), 1)


class Sleeper:
    """Sleeps tick by tick in a thread while its block runs, in a process that has nothing else to do."""

    def __init__(self) -> None:
        self._late_seconds: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sleep, name="sleeper", daemon=True)

    @property
    def late_ratio(self) -> float:
        """Share of late ticks."""
        return late_ratio(self._late_seconds)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _sleep(self) -> None:
        while not self._over.is_set():
            due = time.monotonic() + TICK_SECONDS
            time.sleep(TICK_SECONDS)
            self._late_seconds.append(time.monotonic() - due)
