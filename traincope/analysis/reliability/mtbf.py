"""Mean time between interruptions, with its exact interval for a Poisson process.

With n interruptions in a time T, the expected number lies in [chi2(a/2; 2 n) / 2, chi2(1 - a/2; 2 n + 2) / 2] with
confidence 1 - a (Garwood 1936, Biometrika 28, p. 437). T divided by these bounds the mean time. Without an interruption
only the lower bound exists, one-sided: T / (chi2(1 - a; 2) / 2) = T / -ln(a). Interruptions that cluster have a wider
interval than this one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

CONFIDENCE = 0.95
HALVINGS = 80
DECIMALS = 10
"""Decimals of the limits. Later ones depend on the processor: numpy's exponential differs in its last digit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mtbf:
    """Mean time between interruptions, ns, with its 95 % interval."""

    ns: float | None
    """None: there was none."""
    low_ns: float
    """Lower limit; the one-sided bound of 95 % if there was no interruption."""
    high_ns: float | None
    """None: there is no upper limit."""
    running: bool
    """True: per time in which an attempt ran. False: per elapsed time, because the running time is unknown. The mean
    time per running time is then shorter.
    """


def mtbf(time_ns: int, number: int, *, running: bool) -> Mtbf | None:
    """Estimate the mean time between `number` interruptions in `time_ns`. None without time."""
    if time_ns <= 0:
        return None
    if not number:
        return Mtbf(ns=None, low_ns=time_ns / -math.log(1 - CONFIDENCE), high_ns=None, running=running)
    low, high = poisson_bounds(number)
    return Mtbf(ns=time_ns / number, low_ns=time_ns / high, high_ns=time_ns / low, running=running)


@cache
def poisson_bounds(number: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Limits of the expected number of events of which `number` were counted: two-sided, and exact."""
    tail = (1 - confidence) / 2
    highest = 2 * number + 50.0
    high = _root(lambda mean: _at_most(number, mean) - tail, below=highest)
    low = 0.0 if not number else _root(lambda mean: tail - 1 + _at_most(number - 1, mean), below=highest)
    return low, high


def _root(falling: Callable[[float], float], *, below: float) -> float:
    """Return the point between 0 and `below` at which a falling function crosses 0."""
    low, high = 0.0, below
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return round((low + high) / 2, DECIMALS)


def _at_most(number: int, mean: float) -> float:
    """Probability of at most `number` events of a Poisson distribution."""
    if mean <= 0:
        return 1.0
    counts = np.arange(number + 1, dtype=np.float64)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(counts[1:]))])
    return min(float(np.exp(counts * math.log(mean) - mean - log_factorials).sum()), 1.0)
