"""Autocorrelation of series of steps: how many neighbouring steps depend on each other.

The integrated autocorrelation time (Sokal, "Monte Carlo methods in statistical mechanics", 1989) is the sum of the
autocorrelations of all distances.
"""

from collections.abc import Sequence
from math import sqrt

from traincope.arrays import Floats

WINDOW = 5.0
"""Autocorrelation is summed over this many of its times."""
INDEPENDENT = 1.3
"""Autocorrelation times up to this value are noise."""


def correlation_time(runs: Sequence[Floats]) -> float:
    """Integrated autocorrelation time of equal series, in entries; 1 for independent or constant series.

    With Wolff's correction for short series ("Monte Carlo errors with less errors", 2004).
    """
    centred = [values - values.mean() for values in runs]
    variance = sum(float(values @ values) for values in centred)
    if variance <= 0:
        return 1.0
    time, window = 1.0, 0
    while window + 1 < min(min(map(len, runs)), WINDOW * time):
        window += 1
        time += 2 * sum(float(values[window:] @ values[:-window]) for values in centred) / variance
    if time <= INDEPENDENT:
        return 1.0
    return float(time * (1 + (2 * window + 1) / sum(map(len, runs))))


def positive_correlation_time(values: Floats) -> float:
    """Integrated autocorrelation time up to the first distance whose correlation is within its error, 2 / sqrt(count).

    1 for independent or constant values. Every short series has negative correlations at long distances, because its
    mean is its own. They do not count, so this time is rarely too small (Geyer, "Practical Markov chain Monte Carlo",
    1992).
    """
    centred = values - values.mean()
    variance, time = float(centred @ centred), 1.0
    for distance in range(1, len(values)):
        correlation = float(centred[distance:] @ centred[:-distance]) / variance if variance > 0 else 0.0
        if correlation <= 2 / sqrt(len(values)):
            break
        time += 2 * correlation
    return time
