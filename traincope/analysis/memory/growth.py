"""Steady growth of a rank's memory over the steps, and the step at which it is exhausted."""

from functools import lru_cache
from math import ceil

import numpy as np

from traincope.arrays import Floats, Ints

MIN_SAMPLES = 32
"""Fewest samples for a growth."""
MIN_STEPS = 64
"""Fewest steps that they span; fewer may be warm-up."""
WARM_UP = 4
"""One in this many samples, the first ones, is left out: caches fill."""
PARTS = 8
GROWTH_RATIO = 0.05
"""Growth, as a share of the first value, from which it counts."""
GROWTH_BYTES = 1 << 30
"""Growth that counts however small its share is."""
NOISES = 10.0
"""Growth relative to the spread around its line from which it counts. An allocator that fills its caches on a busy
machine crept by 3 to 6 spreads in 100 steps, a leak of 3 MiB per step grew by 25.
"""
SCALE = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
MAX_POINTS = 256
"""Number of samples for a slope; more are thinned out evenly."""


def settled(steps: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Return the samples without warm-up."""
    begin = len(values) // WARM_UP
    return steps[begin:], values[begin:]


def slope(steps: Ints, values: Ints) -> float:
    """Median slope of all pairs, per step (Theil 1950, Sen 1968). Up to 29 % of outliers do not move it.

    Samples need not be of every step: a run with sampled windows has none between them.
    """
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), MAX_POINTS)).astype(np.int64))
    first, second = _pairs(len(chosen))
    apart = steps[chosen[second]] - steps[chosen[first]]
    grown = (values[chosen[second]] - values[chosen[first]])[apart > 0]
    return float(np.median(grown / apart[apart > 0])) if len(grown) else 0.0


@lru_cache(maxsize=8)
def _pairs(count: int) -> tuple[Ints, Ints]:
    """Return the positions of all pairs among so many points. Ranks mostly have the same number."""
    first, second = np.triu_indices(count, k=1)
    return first, second


def enough(steps: Ints) -> bool:
    """Return whether samples after these steps suffice to judge a growth."""
    return len(steps) >= MIN_SAMPLES and int(steps[-1] - steps[0]) >= MIN_STEPS - 1


def grows(steps: Ints, values: Ints) -> bool:
    """True if settled values grow steadily and by much. False if they are not enough.

    The medians of eight parts each lie above the one before, which noise around a level does once in 8! = 40,320 times.
    The second half grows at least half as fast as the first, so the growth does not level off. The total growth is at
    least `GROWTH_RATIO` of the first part, or `GROWTH_BYTES`, and `NOISES` spreads of the values around their line. At
    least half of it is along that line: a few jumps are no steady growth.
    """
    if not enough(steps):
        return False
    medians = [float(np.median(part)) for part in np.array_split(values, PARTS)]
    if (np.diff(medians) <= 0).any():
        return False
    places = [float(np.median(part)) for part in np.array_split(steps, PARTS)]
    middle = PARTS // 2
    early = (medians[middle - 1] - medians[0]) / max(places[middle - 1] - places[0], 1)
    late = (medians[-1] - medians[middle]) / max(places[-1] - places[middle], 1)
    least = min(GROWTH_RATIO * medians[0], GROWTH_BYTES)
    total, per_step = medians[-1] - medians[0], slope(steps, values)
    noise = SCALE * _spread(values - per_step * (steps - steps[0]))
    is_steady = 2 * per_step * (places[-1] - places[0]) >= total
    return late >= early / 2 and total >= least and total >= NOISES * noise and is_steady


def _spread(values: Floats) -> float:
    """Median absolute deviation."""
    return float(np.median(np.abs(values - np.median(values))))


def exhausted_at(step: int, *, held_bytes: int, bytes_per_step: float, limit_bytes: int) -> int | None:
    """Return the step by which growth from `held_bytes` at `step` reaches the limit; None if it does not grow."""
    if bytes_per_step <= 0:
        return None
    return step + max(ceil((limit_bytes - held_bytes) / bytes_per_step), 0)
