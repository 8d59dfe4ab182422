"""Is the recorder too expensive for this training? Own CPU time against the wall time of steps."""

from collections import deque

STEPS = 20
"""How many steps in a row are judged together, but for the dearest of them: what happens once is no rate."""
DEFAULT_RATIO = 0.005


class Throttle:
    """Judges the last `STEPS` steps; `ratio` None: never too expensive."""

    def __init__(self, ratio: float | None) -> None:
        self._ratio = ratio
        self._steps: deque[tuple[int, int]] = deque(maxlen=STEPS)

    @property
    def percent(self) -> str:
        return f"{100 * (self._ratio or 0.0):g} %"

    def too_expensive(self, step: tuple[int, int] | None) -> bool:
        """`step`: own ns and wall ns of the one that just ended. After a yes, counting begins anew."""
        if self._ratio is None or step is None:
            return False
        self._steps.append(step)
        if len(self._steps) < STEPS:
            return False
        dearest = max(own for own, _ in self._steps)
        own_ns = sum(own for own, _ in self._steps) - dearest
        wall_ns = sum(wall for _, wall in self._steps) * (STEPS - 1) // STEPS
        if own_ns <= self._ratio * wall_ns:
            return False
        self._steps.clear()
        return True
