"""Detection of what one window is too short to judge by: slow steps, a step time that rose, memory that grows.

Each remembers the latest steps. The length of a step is that on the rank where it took longest.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from traincope.analysis.faults.anomalies.slowness import limit_ns
from traincope.analysis.faults.anomalies.step_changes import change_point
from traincope.analysis.memory.growth import grows, settled, slope
from traincope.analysis.memory.uses import GROWING, by_measure
from traincope.events import NO_STEP, Phase
from traincope.timeline import Timeline

NUM_REMEMBERED = 256
"""Number of latest steps that are remembered."""
MAX_SAMPLES = 1_024
"""Number of samples of memory that are remembered: then every second one is forgotten."""


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


class Growth(NamedTuple):
    """Memory of a rank that grows steadily."""

    rank: int
    measure: str
    step: int
    """Step of the latest sample."""
    at_ns: int
    bytes_per_step: float
    last_bytes: int


class GrowingMemory:
    """Memory of each rank after steps, since the attempt began."""

    def __init__(self) -> None:
        self._samples: dict[tuple[int, str], list[tuple[int, int]]] = {}
        self._found: set[int] = set()
        """Ranks whose growth was found."""

    def judge(self, timeline: Timeline) -> Iterator[Growth]:
        """Add the new samples. Yield the growth of each rank once."""
        for rank in timeline.ranks:
            for measure, records in by_measure(rank):
                if measure not in GROWING or rank.rank in self._found:
                    continue
                samples = self._samples.setdefault((rank.rank, measure), [])
                newest = samples[-1][0] if samples else NO_STEP
                new = records[(records["phase"] == Phase.NONE) & (records["step"] > newest)]
                samples += zip(new["step"].tolist(), new["value"].tolist(), strict=True)
                if len(samples) > MAX_SAMPLES:
                    del samples[::2]
                steps, values = settled(*np.array(samples, dtype=np.int64).reshape(-1, 2).T)
                if len(new) and grows(steps, values):
                    self._found.add(rank.rank)
                    at_ns = int(new["start_ns"][-1])
                    yield Growth(rank.rank, measure, int(steps[-1]), at_ns, slope(steps, values), int(values[-1]))
