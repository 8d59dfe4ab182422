"""Stretches of steps in which a rank of a table of operations computes more slowly than in its other steps.

A rank's computation is compared with its own median, and with that of the other ranks in the same step, so a step that
is long on all ranks is no rank's. The steps are cut where the mean changes most (binary segmentation with the CUSUM
statistic: Page 1954, Biometrika 41, 100-115), as long as the change is clear above the noise between neighbours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

import numpy as np

from traincope.analysis.stragglers.operation_order import COMPUTE
from traincope.arrays import Bools, Floats, Ints
from traincope.store.side_tables.operations import Operations

SCALE = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
MIN_STEPS = 5
"""Fewest steps of a stretch, and of a part of the run between two changes."""
MIN_USUAL_RATIO = 0.1
"""Smallest share of the steps that are as fast as the rank is usually."""
MIN_RATIO = 1.15
"""Times of the usual computation from which a rank is slow."""
ALIKE_RATIO = 1.1
"""Times of the fastest part up to which another part is as usual."""
SIGMAS = 8.0
"""Standard deviations of the noise from which a change is clear."""
LEAST_NOISE = 0.002
"""Noise of times that hardly vary, relative to them."""
MIN_LENGTHENING = 0.02
"""Smallest growth of the job's steps in a stretch, relative to them."""
FEWEST_OTHERS = 3
"""Ranks from which the median rank of a step is hardly moved by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps in a row in which a rank's computation takes longer than in its other steps."""

    rank: int
    first_step: int
    last_step: int
    num_steps: int
    ratio: float
    """Its computation in these steps over that in its usual ones, by the medians."""
    lost_ratio: float
    """Time of these steps above the job's usual step, as a share of the time of all steps."""
    to_the_end: bool
    """The stretch ends with the table."""

    def has(self, step: int) -> bool:
        return self.first_step <= step <= self.last_step

    def meets(self, other: "Stretch") -> bool:
        """Return whether both have steps in common."""
        return self.first_step <= other.last_step and other.first_step <= self.last_step

    @property
    def when(self) -> str:
        """Its steps in words."""
        if self.to_the_end:
            return f"from step {self.first_step} on"
        return f"in steps {self.first_step} to {self.last_step}"


def slow_stretches(operations: Operations) -> tuple[Stretch, ...]:
    """Find the stretches that make the job's steps longer, in order of steps."""
    steps, number = np.unique(operations.step, return_inverse=True)
    ranks, place = np.unique(operations.rank, return_inverse=True)
    computes = operations.are(*COMPUTE)
    if len(steps) < 2 * MIN_STEPS or not computes.any():
        return ()
    cells = (place.reshape(-1) * len(steps) + number.reshape(-1))[computes]
    own_ns = (operations.end_ns - operations.start_ns)[computes]
    computed_ns = np.bincount(cells, weights=own_ns, minlength=len(ranks) * len(steps)).reshape(len(ranks), -1)
    usual_ns = np.median(computed_ns, axis=1)
    computed_ns, ranks = computed_ns[usual_ns > 0], ranks[usual_ns > 0]
    relative = computed_ns / usual_ns[usual_ns > 0, None]
    if len(ranks) >= FEWEST_OTHERS:
        relative = relative / np.maximum(np.median(relative, axis=0), np.finfo(float).tiny)
    _, first_ns, last_ns = operations.step_bounds()
    found = [
        stretch
        for rank, own, times in zip(ranks.tolist(), computed_ns, relative, strict=True)
        for stretch in _stretches(rank, own, times, steps=steps, lengths_ns=(last_ns - first_ns).astype(np.float64))
    ]
    alone = (each for each in found if sum(map(each.meets, found)) <= max(len(ranks) // 2, 1))
    return tuple(sorted(alone, key=lambda each: (each.first_step, each.rank)))


def _stretches(rank: int, own_ns: Floats, times: Floats, *, steps: Ints, lengths_ns: Floats) -> Iterator[Stretch]:
    smooth = _without_single_steps(times)
    borders = [0, *sorted(_changes(smooth, noise=_noise(times))), len(smooth)]
    parts = list(pairwise(borders))
    levels = [float(np.median(smooth[begin:end])) for begin, end in parts]
    limit = ALIKE_RATIO * min(levels)
    usual = np.zeros(len(smooth), dtype=bool)
    for (begin, end), level in zip(parts, levels, strict=True):
        usual[begin:end] = level <= limit
    if usual.mean() < MIN_USUAL_RATIO or usual.sum() < MIN_STEPS:
        return
    usual_times, usual_own_ns, usual_step_ns = (float(np.median(each[usual])) for each in (smooth, own_ns, lengths_ns))
    for begin, end in _runs(~usual):
        ratio = float(np.median(own_ns[begin:end])) / usual_own_ns
        longer_ns = float(np.median(lengths_ns[begin:end])) - usual_step_ns
        is_slow = min(ratio, float(np.median(smooth[begin:end])) / usual_times) >= MIN_RATIO
        if is_slow and end - begin >= MIN_STEPS and longer_ns >= MIN_LENGTHENING * usual_step_ns:
            yield Stretch(
                rank=rank,
                first_step=int(steps[begin]),
                last_step=int(steps[end - 1]),
                num_steps=end - begin,
                ratio=ratio,
                lost_ratio=float((lengths_ns[begin:end] - usual_step_ns).sum() / lengths_ns.sum()),
                to_the_end=end == len(steps),
            )


def _without_single_steps(times: Floats) -> Floats:
    """Medians of three neighbours: they keep each change in its place, and no single slow step."""
    padded = np.concatenate([times[:1], times, times[-1:]])
    smooth: Floats = np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0)
    return smooth


def _noise(times: Floats) -> float:
    """Standard deviation between neighbours, which a few changes of the mean do not move."""
    deviation = SCALE * float(np.median(np.abs(np.diff(times)))) / sqrt(2)
    return max(deviation, LEAST_NOISE * float(np.median(times)))


def _changes(values: Floats, *, noise: float, first: int = 0) -> Iterator[int]:
    """Yield the first position after each change of the mean."""
    count = len(values)
    if count < 2 * MIN_STEPS:
        return
    before = np.arange(1, count)
    sums = np.cumsum(values)
    difference = np.abs(sums[:-1] / before - (sums[-1] - sums[:-1]) / (count - before))
    statistic = difference * np.sqrt(before * (count - before) / count)
    statistic[: MIN_STEPS - 1] = statistic[count - MIN_STEPS :] = 0
    at = 1 + int(np.argmax(statistic))
    if statistic[at - 1] > SIGMAS * noise:
        yield from _changes(values[:at], noise=noise, first=first)
        yield first + at
        yield from _changes(values[at:], noise=noise, first=first + at)


def _runs(chosen: Bools) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each run of chosen steps."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], chosen.astype(np.int8), [0]])))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
