"""Autocorrelation of series of steps: how many neighbouring steps depend on each other.

The integrated autocorrelation time (Sokal, "Monte Carlo methods in statistical mechanics", 1989) is the sum of the
autocorrelations of all distances.
"""

from math import sqrt

from traincope.arrays import Floats


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
