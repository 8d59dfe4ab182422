"""Whether two runs differ by more than their own steps do.

Steps are put into blocks of consecutive ones, so long that blocks hardly depend on each other: twice the integrated
autocorrelation time of the step times (Sokal, "Monte Carlo methods in statistical mechanics", 1989). If the runs were
alike, it would not matter which of them a block came from: blocks are dealt out anew, in every way or in many random
ones, and p is the share of these in which the runs differ as much as they did (Fisher's permutation test). Of many
terms, so that the chance that any of them moves by luck is no larger than of one: each is compared with the largest
difference of all that are not larger (Westfall and Young's step-down maxT, "Resampling-based multiple testing", 1993).

Of few steps nobody can tell whether they depend on each other. At a level of 0.01 alike runs are told apart in 1 % of
300 trials where steps are independent, and in 3 to 5 % where each depends on the one before (60 steps at a correlation
of 0.5, 300 at 0.9); but in 6 % of 30 steps at 0.5, and in 13 % of 10 (`python -m tests.bench.diff`).

What a run takes is the mean of its blocks, those pulled in that are more than five spreads from their median: one
hiccup of the machine moves it little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEWEST_BLOCKS = 5
"""Of each run: of fewer no dealing out is rarer than one in a hundred."""
MOST_BLOCKS = 30
MOST_DEALS = 1_999
WINDOW = 5.0
"""Autocorrelation is summed so many of its times far."""
INDEPENDENT = 1.3
"""Up to this a time is taken for noise."""
SPREADS, SCALE = 5.0, 1.4826
"""Of normal noise a spread is SCALE times the median absolute deviation."""
RESAMPLES = 2_000
SEED = 0
"""The same runs are always told the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Significance:
    """Of columns; the first one is tested alone, the others together."""

    before: Floats
    after: Floats
    """What a run takes."""
    p: Floats
    """How often as large a difference would come by chance."""
    interval: tuple[float, float]
    """95 % of the first column's difference, by resampling blocks."""

    @property
    def change(self) -> Floats:
        return self.after - self.before


def correlation_time(runs: Sequence[Floats]) -> float:
    """Integrated autocorrelation time of series that are alike, in entries; 1 for what is independent, or constant.

    With Wolff's correction of what short series hide ("Monte Carlo errors with less errors", 2004).
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


def block_length(runs: Sequence[Floats]) -> int:
    """For the step times of these runs."""
    time = correlation_time(runs)
    return max(1 if time == 1 else ceil(2 * time), ceil(max(map(len, runs)) / MOST_BLOCKS))


def blocks(columns: Floats, length: int) -> Floats:
    """Means of so many consecutive rows, (blocks, columns); what is left over at the beginning is left out."""
    count = len(columns) // length
    means: Floats = columns[len(columns) - count * length :].reshape(count, length, columns.shape[1]).mean(axis=1)
    return means


def location(values: Floats) -> Floats:
    """The mean over the last axis but one, far values pulled in."""
    middle = np.median(values, axis=-2, keepdims=True)
    spread = SCALE * np.median(np.abs(values - middle), axis=-2, keepdims=True)
    reach = np.where(spread > 0, SPREADS * spread, np.inf)
    pulled: Floats = np.clip(values, middle - reach, middle + reach).mean(axis=-2)
    return pulled


def compare(before: Floats, after: Floats) -> Significance:
    """Blocks of two runs, (blocks, columns), at least FEWEST_BLOCKS of each."""
    pool = np.concatenate([before, after])
    first, second = location(before), location(after)
    dealt = _differences(pool, _deals(len(before), len(after)))
    found = np.abs(second - first)
    reached = found - 1e-9 * (np.abs(first) + np.abs(second))  # equal but for rounding is equal
    p = np.concatenate([_shares(dealt[:, :1], reached[:1]), _step_down(dealt[:, 1:], reached[1:])])
    return Significance(before=first, after=second, p=p, interval=_interval(before[:, :1], after[:, :1]))


def _deals(before: int, after: int) -> Ints:
    """Which blocks the first run gets, a row each; that of what really was among them."""
    if comb(before + after, before) <= MOST_DEALS:
        return np.array(list(combinations(range(before + after), before)), dtype=np.int64)
    random = np.random.default_rng(SEED)
    chances = random.random((MOST_DEALS, before + after))
    chances[0] = np.arange(before + after)
    return np.argsort(chances, axis=1)[:, :before]


def _differences(pool: Floats, deals: Ints) -> Floats:
    """|second - first| of each deal, (deals, columns)."""
    rest = np.ones((len(deals), len(pool)), dtype=bool)
    np.put_along_axis(rest, deals, values=False, axis=1)
    others = np.nonzero(rest)[1].reshape(len(deals), -1)
    return np.abs(location(pool[others]) - location(pool[deals]))


def _shares(dealt: Floats, reached: Floats) -> Floats:
    shares: Floats = (dealt >= reached).mean(axis=0)
    return shares


def _step_down(dealt: Floats, reached: Floats) -> Floats:
    """Adjusted p of each column."""
    p = np.ones(len(reached))
    order = np.argsort(-reached, kind="stable")
    largest, least = np.zeros(len(dealt)), 0.0
    adjusted = []
    for column in order[::-1].tolist():
        largest = np.maximum(largest, dealt[:, column])
        adjusted.append((column, float((largest >= reached[column]).mean())))
    for column, share in reversed(adjusted):
        least = max(least, share)
        p[column] = least
    return p


def _interval(before: Floats, after: Floats) -> tuple[float, float]:
    random = np.random.default_rng(SEED)

    def resampled(values: Floats) -> Floats:
        return location(values[random.integers(len(values), size=(RESAMPLES, len(values)))])[:, 0]

    low, high = np.percentile(resampled(after) - resampled(before), [2.5, 97.5])
    return float(low), float(high)
