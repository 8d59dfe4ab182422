"""Test whether two runs differ by more than their own steps do.

Steps are grouped into blocks of consecutive steps, so long that blocks hardly depend on each other: twice the
integrated autocorrelation time of the step times (Sokal, "Monte Carlo methods in statistical mechanics", 1989). If the
runs were equal, it would not matter which run a block came from. Blocks are therefore reassigned to the runs, in all
ways or in many random ones. p is the share of assignments in which the runs differ as much as they did (Fisher's
permutation test). With many terms, the chance that any of them changes by luck must be no larger than with one. So each
term is compared with the largest difference of all terms that are not larger (Westfall and Young's step-down maxT,
"Resampling-based multiple testing", 1993).

Few steps do not show whether they depend on each other. At a level of 0.01, equal runs are called different in 1 % of
300 trials if steps are independent, and in 3 to 5 % if each step depends on the one before (60 steps at a correlation
of 0.5, 300 at 0.9). With 30 steps at 0.5 it is 6 %, with 10 steps 13 % (`python -m tests.bench.diff`).

The typical value of a run is the weighted mean of its blocks, with blocks more than five spreads from their median
clipped: one hiccup of the machine moves it little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, comb

import numpy as np

from traincope.analysis.autocorrelation import correlation_time
from traincope.arrays import Floats, Ints

MIN_BLOCKS = 5
"""Fewest blocks per run: with fewer, no assignment is rarer than one in a hundred."""
MAX_BLOCKS = 30
MAX_PERMUTATIONS = 1_999
SPREADS, SCALE = 5.0, 1.4826
"""SCALE times the median absolute deviation is the spread of normal noise."""
RESAMPLES = 2_000
SEED = 0
"""Fixed seed: the same runs always give the same result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Significance:
    """Result of the test, by column. The first column is tested alone, the others together."""

    before: Floats
    after: Floats
    """Typical value of each column in a run."""
    p: Floats
    """Probability of so large a difference by chance."""
    interval: tuple[float, float]
    """95 % interval of the first column's difference, by resampling blocks."""

    @property
    def change(self) -> Floats:
        return self.after - self.before


def block_length(runs: Sequence[Floats]) -> int:
    """Steps per block for the step times of these runs."""
    time = correlation_time(runs)
    return max(1 if time == 1 else ceil(2 * time), ceil(max(map(len, runs)) / MAX_BLOCKS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Means of a run over blocks of consecutive entries."""

    means: Floats
    """(blocks, columns)."""
    weights: Floats
    """Number of steps that each block stands for."""

    def __len__(self) -> int:
        return len(self.means)

    @property
    def location(self) -> Floats:
        """Typical value of each column."""
        return location(self.means, self.weights)


def blocks(columns: Floats, length: int, weights: Floats | None = None) -> Blocks:
    """Means of `length` consecutive rows. Rows left over at the beginning are dropped; `weights` are equal if None."""
    count = len(columns) // length
    rows = columns[len(columns) - count * length :].reshape(count, length, columns.shape[1])
    each = np.ones(len(columns)) if weights is None else weights
    each = each[len(columns) - count * length :].reshape(count, length)
    sums = each.sum(axis=1)
    return Blocks(means=(rows * each[:, :, None]).sum(axis=1) / sums[:, None], weights=sums)


def location(values: Floats, weights: Floats) -> Floats:
    """Weighted mean over the last axis but one, far values clipped. `weights` lack the last axis."""
    middle = np.median(values, axis=-2, keepdims=True)
    spread = SCALE * np.median(np.abs(values - middle), axis=-2, keepdims=True)
    reach = np.where(spread > 0, SPREADS * spread, np.inf)
    pulled = np.clip(values, middle - reach, middle + reach)
    result: Floats = (pulled * weights[..., None]).sum(axis=-2) / weights.sum(axis=-1)[..., None]
    return result


def compare(before: Blocks, after: Blocks) -> Significance:
    """Test the difference of two runs with at least MIN_BLOCKS blocks each."""
    pool = Blocks(
        means=np.concatenate([before.means, after.means]), weights=np.concatenate([before.weights, after.weights])
    )
    first, second = before.location, after.location
    permuted = _differences(pool, _permutations(len(before), len(after)))
    observed = np.abs(second - first)
    threshold = observed - 1e-9 * (np.abs(first) + np.abs(second))  # differences within rounding count as equal
    p = np.concatenate([_shares(permuted[:, :1], threshold[:1]), _step_down(permuted[:, 1:], threshold[1:])])
    return Significance(before=first, after=second, p=p, interval=_interval(before, after))


def _permutations(before: int, after: int) -> Ints:
    """Rows of block indices for the first run. The actual assignment is among them."""
    if comb(before + after, before) <= MAX_PERMUTATIONS:
        return np.array(list(combinations(range(before + after), before)), dtype=np.int64)
    random = np.random.default_rng(SEED)
    chances = random.random((MAX_PERMUTATIONS, before + after))
    chances[0] = np.arange(before + after)
    return np.argsort(chances, axis=1)[:, :before]


def _differences(pool: Blocks, permutations: Ints) -> Floats:
    """Differences |second - first| of each assignment, (assignments, columns)."""
    is_second = np.ones((len(permutations), len(pool)), dtype=bool)
    np.put_along_axis(is_second, permutations, values=False, axis=1)
    others = np.nonzero(is_second)[1].reshape(len(permutations), -1)
    second = location(pool.means[others], pool.weights[others])
    return np.abs(second - location(pool.means[permutations], pool.weights[permutations]))


def _shares(permuted: Floats, threshold: Floats) -> Floats:
    shares: Floats = (permuted >= threshold).mean(axis=0)
    return shares


def _step_down(permuted: Floats, threshold: Floats) -> Floats:
    """Adjusted p of each column."""
    p = np.ones(len(threshold))
    order = np.argsort(-threshold, kind="stable")
    largest, smallest = np.zeros(len(permuted)), 0.0
    adjusted = []
    for column in order[::-1].tolist():
        largest = np.maximum(largest, permuted[:, column])
        adjusted.append((column, float((largest >= threshold[column]).mean())))
    for column, share in reversed(adjusted):
        smallest = max(smallest, share)
        p[column] = smallest
    return p


def _interval(before: Blocks, after: Blocks) -> tuple[float, float]:
    """Interval of the first column's difference."""
    random = np.random.default_rng(SEED)

    def resampled(run: Blocks) -> Floats:
        drawn = random.integers(len(run), size=(RESAMPLES, len(run)))
        return location(run.means[drawn, :1], run.weights[drawn])[:, 0]

    low, high = np.percentile(resampled(after) - resampled(before), [2.5, 97.5])
    return float(low), float(high)
