"""The throttle: compare the recorder's own CPU time with the wall time of steps."""

from collections import deque

WINDOW_STEPS = 20
"""Number of steps that are judged together, without the most expensive one: a single event is not a rate."""
DEFAULT_RATIO = 0.005


class Throttle:
    """Judges the last `WINDOW_STEPS` steps. `ratio` None: never too expensive."""

    def __init__(self, ratio: float | None) -> None:
        self._ratio = ratio
        self._steps: deque[tuple[int, int]] = deque(maxlen=WINDOW_STEPS)

    @property
    def percent(self) -> str:
        return f"{100 * (self._ratio or 0.0):g} %"

    def is_too_expensive(self, step: tuple[int, int] | None) -> bool:
        """Add the last step (own ns, wall ns) and judge. After True, counting starts again."""
        if self._ratio is None or step is None:
            return False
        self._steps.append(step)
        if len(self._steps) < WINDOW_STEPS:
            return False
        most_expensive_ns = max(recorder_ns for recorder_ns, _ in self._steps)
        own_ns = sum(recorder_ns for recorder_ns, _ in self._steps) - most_expensive_ns
        wall_ns = sum(wall for _, wall in self._steps) * (WINDOW_STEPS - 1) // WINDOW_STEPS
        if own_ns <= self._ratio * wall_ns:
            return False
        self._steps.clear()
        return True
