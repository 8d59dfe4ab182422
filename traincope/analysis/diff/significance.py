"""Test whether two runs differ by more than their own steps do.

A run is cut into BLOCKS blocks of consecutive steps. Means of long blocks hardly depend on each other, so Welch's
t-test compares them ("The generalization of Student's problem", 1947). The longer the noise lasts, the further apart
are the means of a run, and the larger a difference must be. The correlation of neighbouring blocks is measured. Its
upper bound, r, multiplies the variance by (1 + r) / (1 - r), as for noise that fades by a factor per block (Andrews and
Monahan, "An improved heteroskedasticity and autocorrelation consistent covariance matrix estimator", 1992). A larger
bound than MAX_CORRELATION counts as that: then only a difference far beyond the run's own drift is found, and a smaller
one is not tested. Neither is a run of too few steps. The number of steps that a test needs is then estimated.

`python -m benchmarks.diff` simulates equal runs with many kinds of noise. It fails if more of them are called
different than the level allows.

The typical value of a run is the mean of its blocks. If one block is more than five spreads from their median, it
counts as the next farthest one: one hiccup of the machine moves it little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, sqrt

import numpy as np

from traincope.analysis.student import student_quantile, student_tail
from traincope.arrays import Floats

BLOCKS = 10
"""Blocks of a run: as few as give a useful quantile of Student's t, so that each lasts as long as it can."""
MIN_BLOCK_STEPS = 5
"""Steps of a block. Shorter blocks do not show noise that lasts a few steps."""
CORRELATION_ERRORS = 1.75
"""Standard errors by which the correlation of neighbouring blocks may exceed its measurement."""
MAX_CORRELATION = 0.97
"""Largest correlation that counts."""
LEVEL = 0.01
"""Share of pairs of equal runs that the test wrongly calls different."""
SPREADS, SCALE = 5.0, 1.4826
"""SCALE times the median absolute deviation is the spread of normal noise."""
ROUNDING = 1e-9
"""Share of the values within which they count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of the test of one quantity."""

    before: float
    after: float
    """Typical value in a run."""
    p: float | None
    """Probability of so large a difference by chance; None: not tested."""
    interval: tuple[float, float] | None
    """95 % interval of the difference; None: not tested."""
    entries_needed: int | None
    """About as many entries of each run would be tested; None: tested."""

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Means of a run over blocks of consecutive entries, outliers limited."""

    means: Floats
    shares: Floats
    """Shares of the entries that the blocks hold."""

    @property
    def location(self) -> float:
        """Typical value of the run."""
        return float(self.means @ self.shares)

    @property
    def variance(self) -> float:
        """Variance of the location if blocks are independent."""
        count = len(self.means)
        return float(self.shares**2 @ (self.means - self.location) ** 2) * count / (count - 1)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the variance."""
        return 1 / float(self.shares @ self.shares) - 1

    @property
    def correlation(self) -> float:
        """Correlation of neighbouring blocks. Their mean is their own, which makes it too small by 1 / count."""
        centred = self.means - self.means.mean()
        if np.abs(centred).max() <= ROUNDING * np.abs(self.means).max():
            return 0.0
        return float(centred[1:] @ centred[:-1] / (centred @ centred)) + 1 / len(centred)


def blocks(values: Floats) -> Blocks:
    """Means of BLOCKS stretches of about equal length; of each entry in a shorter series."""
    edges = np.linspace(0, len(values), min(BLOCKS, len(values)) + 1).astype(np.int64)
    counts = np.diff(edges)
    means = np.add.reduceat(values, edges[:-1]) / counts
    return Blocks(means=_limited(means), shares=counts / len(values))


def location(values: Floats) -> float:
    """Typical value of a series with at least one entry."""
    return blocks(values).location


def compare(before: Floats, after: Floats) -> Comparison:
    """Test whether two series with at least one entry each have the same mean."""
    first, second = blocks(before), blocks(after)
    shortest = min(len(before), len(after))
    if shortest < BLOCKS * MIN_BLOCK_STEPS:
        return _untested(first, second, entries_needed=BLOCKS * MIN_BLOCK_STEPS)
    correlation = max(0.0, first.correlation, second.correlation)
    bound = correlation + CORRELATION_ERRORS / sqrt(BLOCKS)
    depends, bound = bound > MAX_CORRELATION, min(bound, MAX_CORRELATION)
    variances = first.variance, second.variance
    error = sqrt(sum(variances) * (1 + bound) / (1 - bound))
    freedom = _freedom(first, second)
    change = second.location - first.location
    if abs(change) <= ROUNDING * (abs(first.location) + abs(second.location)):
        p = 1.0
    else:
        p = student_tail(change / error if error else inf, freedom)
    if depends and p > LEVEL:
        likely = min(correlation, MAX_CORRELATION)
        return _untested(first, second, entries_needed=ceil(shortest * (1 + likely) / (1 - likely)))
    reach = student_quantile(max(1, int(freedom))) * error
    return Comparison(
        before=first.location,
        after=second.location,
        p=p,
        interval=(change - reach, change + reach),
        entries_needed=None,
    )


def adjusted(p: Sequence[float | None]) -> list[float | None]:
    """Probabilities that any of these quantities differs so much by chance (Holm 1979, a step-down Bonferroni test).

    None stays None, and counts as a test: whether a quantity can be tested is seen in the same data.
    """
    result: list[float | None] = [None] * len(p)
    largest = 0.0
    tested = [(value, at) for at, value in enumerate(p) if value is not None]
    for rank, (value, at) in enumerate(sorted(tested)):
        largest = max(largest, min(1.0, value * (len(p) - rank)))
        result[at] = largest
    return result


def _untested(first: Blocks, second: Blocks, *, entries_needed: int) -> Comparison:
    return Comparison(
        before=first.location, after=second.location, p=None, interval=None, entries_needed=entries_needed
    )


def _freedom(first: Blocks, second: Blocks) -> float:
    """Degrees of freedom of the difference (Welch 1947)."""
    variances = first.variance, second.variance
    parts = sum(variance**2 / run.freedom for variance, run in zip(variances, (first, second), strict=True))
    return sum(variances) ** 2 / parts if parts else first.freedom + second.freedom


def _limited(means: Floats) -> Floats:
    """Limit the block that is farthest from the median, if it is an outlier."""
    middle = _median(np.sort(means))
    distances = np.sort(np.abs(means - middle))
    spread = SCALE * _median(distances)
    if len(means) < 3 or spread == 0:
        return means
    reach = max(SPREADS * spread, float(distances[-2]))
    return means if distances[-1] <= reach else np.clip(means, middle - reach, middle + reach)


def _median(values: Floats) -> float:
    """Median of sorted values."""
    count = len(values)
    return float(values[(count - 1) // 2] + values[count // 2]) / 2
