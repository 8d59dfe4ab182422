"""Estimates over all steps of a run from the steps that windows show in detail.

Light steps record the time of each phase. A window also shows the stalls and the idle time in it. So the total of every
phase is known, and only its division is sampled: by the regression of each part on the phase's length, with one weight
per window. The error is that of leaving out each window in turn. The parts of a phase sum exactly to it.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Bools, Floats, Ints
from traincope.events import BLOCK_STEPS

CONFIDENCE = 0.95
MIN_WINDOWS = 8
"""Fewer windows give no interval that could be trusted."""
MAX_WINDOW_SHARE = 0.25
"""Largest share of all steps that one window may stand for."""
MIN_TERM_SHARE = 0.005
"""Share of step time below which single steps, which no window may show, decide a term."""
MIN_PRESENCE = 0.5
"""Share of sampled steps with something in a phase from which that follows the phase's length."""

NO_SPREAD = 1e-12
"""Relative variance of equal lengths, by rounding."""

FEW_WINDOWS = f"fewer than {MIN_WINDOWS} windows"
NO_WINDOW = "no window in more than a quarter of the steps"
SMALL = "below 0.5 % of step time, where single steps decide"
RARE = "in fewer than half of the sampled steps, where single steps decide"

Matrix = NDArray[np.float64]
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Number over all steps: a share of their wall time, or a mean per rank and step."""

    estimate: float
    low: float | None
    """Limits of the 95 % interval; equal to the estimate if every step records the term; None: see `reason`."""
    high: float | None
    steps: int
    """Number of steps that the estimate stands on."""
    reason: str | None = None
    """Reason why the sampling error is unknown."""


@dataclass(frozen=True, kw_only=True)
class SampledSteps:
    """Steps of a run that is recorded in windows, summed over ranks. Arrays have one entry per step."""

    numbers: Ints
    """In ascending order."""
    wall_ns: int
    sampled: Bools
    """True for the steps that windows show."""
    by_phase: Mapping[tuple[str, str], Floats]
    """(Phase, term) -> ns of the term that a light step records as that phase; in a light step the phase's own term."""
    whole_phases: bool = True
    """True if a phase that windows show without other terms has none in light steps either."""

    @property
    def phases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(phase for phase, _ in self.by_phase))

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.phases, *(term for _, term in self.by_phase))))

    @cached_property
    def lengths_ns(self) -> Mapping[str, Floats]:
        """Phase -> its length in every step."""
        empty = np.zeros(len(self.numbers))
        return {
            phase: sum((ns for (of, _), ns in self.by_phase.items() if of == phase), empty) for phase in self.phases
        }

    @cached_property
    def inside(self) -> Mapping[str, tuple[tuple[str, ...], Matrix]]:
        """Phase -> the other terms that windows show in it, and their ns (sampled steps x terms)."""
        result = {}
        for phase in self.phases:
            columns = {
                term: ns[self.sampled] for (of, term), ns in self.by_phase.items() if of == phase and term != phase
            }
            columns = {term: ns for term, ns in columns.items() if ns.any()}
            if columns:
                result[phase] = tuple(columns), np.column_stack(list(columns.values()))
        return result

    @property
    def length_ns(self) -> Floats:
        """Length of every step."""
        return sum(self.lengths_ns.values(), np.zeros(len(self.numbers)))

    @cached_property
    def window(self) -> Ints:
        """Block of the window that stands for each step."""
        blocks = self.numbers // BLOCK_STEPS
        return represented_by(np.unique(blocks[self.sampled]), blocks)

    @cached_property
    def sampled_window(self) -> Ints:
        """Number of the window of each sampled step, from 0."""
        return np.unique(self.window[self.sampled], return_inverse=True)[1]

    @cached_property
    def weights(self) -> Floats:
        """Number of steps that each sampled step stands for."""
        sampled = np.bincount(self.sampled_window)
        represented = np.unique(self.window, return_counts=True)[1]
        weights: Floats = (represented / sampled)[self.sampled_window]
        return weights

    @cached_property
    def why_no_interval(self) -> str | None:
        """Reason why these windows give no interval."""
        represented = np.unique(self.window, return_counts=True)[1]
        if len(represented) < MIN_WINDOWS:
            return FEW_WINDOWS
        return NO_WINDOW if represented.max() > MAX_WINDOW_SHARE * len(self.numbers) else None

    def is_exact(self, term: str) -> bool:
        """Return whether every step records the term: windows show its phase whole, and no part of it elsewhere."""
        divided = term in self.inside or any(term in terms for terms, _ in self.inside.values())
        return self.whole_phases and not divided

    def presence(self, terms: Sequence[str]) -> float:
        """Return the share of the sampled steps in which the sum of these terms is not 0."""
        ns = sum((ns for (_, term), ns in self.by_phase.items() if term in terms), np.zeros(len(self.numbers)))
        return float(np.count_nonzero(ns[self.sampled])) / max(int(self.sampled.sum()), 1)


def represented_by(windows: Ints, blocks: Ints) -> Ints:
    """Return, for each of ascending blocks, the window that stands for it.

    A window was drawn among the 2^n blocks of its stratum, the largest aligned one without another window. The first
    block is always a window and stands for itself alone: a run begins unlike it continues. Blocks outside all strata
    have the nearest window.
    """
    drawn = windows[windows > 0] if len(windows) > 1 else windows
    at = np.searchsorted(drawn, blocks)
    earlier, later = drawn[np.maximum(at - 1, 0)], drawn[np.minimum(at, len(drawn) - 1)]
    nearest = np.where(np.abs(blocks - earlier) <= np.abs(later - blocks), earlier, later)
    for window in drawn.tolist():
        stratum = _stratum(window, drawn, last=int(blocks.max(initial=0)))
        nearest[slice(*np.searchsorted(blocks, (stratum.start, stratum.stop)))] = window
    return np.where(np.isin(blocks, np.setdiff1d(windows, drawn)), blocks, nearest)


def _stratum(window: int, windows: Ints, *, last: int) -> range:
    stratum = range(window, window + 1)
    while len(stratum) <= last:
        size = 2 * len(stratum)
        start = window // size * size
        first, end = np.searchsorted(windows, (start, start + size))
        if end - first > 1:
            break
        stratum = range(start, start + size)
    return stratum


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLedger:
    """Ledger of all steps of a run, from windows. Sums are over ranks and steps."""

    steps: int
    """Steps with and without detail."""
    sampled_steps: int
    blocks: int
    """Blocks of steps with detail. The sampling error stands on them."""
    rank_steps: int
    """Number of steps of single ranks in the sums."""
    wall_ns: int
    """Exact."""
    terms: Mapping[str, int | None]
    """Term -> ns, in ledger order. They sum exactly to `wall_ns`."""
    estimates: Mapping[str, Estimate]
    """Measured term -> its share of `wall_ns`."""
    sums: Mapping[str, Estimate]
    """Sum of terms (`exposed_communication[axis]`, `bubble`) -> its share of `wall_ns`."""


def run_ledger(
    steps: SampledSteps, *, order: Sequence[str], unseen: Set[str], sums: Mapping[str, Sequence[str]], rank_steps: int
) -> RunLedger:
    """Estimate the ns of every term over all steps, and the shares of all terms and `sums` (name -> its terms).

    `order`: all terms; `unseen`: those that nothing measures. The interval is that of the jackknife over windows
    (Wolter, Introduction to Variance Estimation, 2007, chapter 4), with the finite population correction (Cochran,
    Sampling Techniques, 1977, section 2.6). On each side it is the longer of Student's and Hall's (1992, "On the
    removal of skewness by transformation"), because waits are skewed.
    """
    shares = _shares(steps)
    ns = _rounded(dict(zip(steps.terms, shares.whole.tolist(), strict=True)), total=steps.wall_ns)
    return RunLedger(
        steps=len(steps.numbers),
        sampled_steps=int(steps.sampled.sum()),
        blocks=len(shares.replicates),
        rank_steps=rank_steps,
        wall_ns=steps.wall_ns,
        terms={term: None if term in unseen else ns.get(term, 0) for term in order},
        estimates={term: shares.of((term,)) for term in order if term not in unseen},
        sums={name: shares.of(terms) for name, terms in sums.items()},
    )


def estimated_shares(steps: SampledSteps, sums: Mapping[Key, Sequence[str]]) -> dict[Key, Estimate]:
    """Estimate the share of each sum of terms in the wall time of all steps, like `run_ledger`."""
    shares = _shares(steps)
    return {key: shares.of(terms) for key, terms in sums.items()}


def estimated_amount(steps: SampledSteps, amount: Floats, *, per: float, why: str | None = None) -> Estimate:
    """Estimate the total over all steps, divided by `per`, of an amount that is no part of a step's time.

    `amount` has one entry per step; only those of sampled steps count. It follows the length of the step. `why`: reason
    of the caller that it has no interval.
    """
    sampled = amount[steps.sampled, None]
    total, *others = _regression(sampled, steps.length_ns, steps)[:, 0] / per
    rare = RARE if np.count_nonzero(sampled) < MIN_PRESENCE * len(sampled) else None
    why = steps.why_no_interval or why or rare
    return _estimate(steps, total, np.array(others), why=why, signed=False, resolution=0.0)


def _rounded(ns: Mapping[str, float], *, total: int) -> dict[str, int]:
    """Round to integers with this sum: those with the largest fractions are rounded up."""
    floors = {term: math.floor(value) for term, value in ns.items()}
    rest = total - sum(floors.values())
    by_fraction = sorted(ns, key=lambda term: floors[term] - ns[term])
    return floors | {term: floors[term] + 1 for term in by_fraction[:rest]}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """Totals of all terms from all windows, and without each window in turn (windows x terms)."""

    steps: SampledSteps
    whole: Floats
    replicates: Matrix

    def of(self, terms: Sequence[str]) -> Estimate:
        """Estimate the share of the sum of these terms. A term without records has none of the time."""
        steps, known = self.steps, [term for term in terms if term in self.steps.terms]
        places = [steps.terms.index(term) for term in known]
        wall_ns = max(steps.wall_ns, 1)
        share = float(self.whole[places].sum()) / wall_ns
        if all(steps.is_exact(term) for term in known):
            return Estimate(estimate=share, low=share, high=share, steps=len(steps.numbers))
        small = SMALL if abs(share) < MIN_TERM_SHARE else None
        rare = RARE if steps.presence(known) < MIN_PRESENCE else None
        signed = any((ns < 0).any() for (_, term), ns in steps.by_phase.items() if term in known)
        replicates = self.replicates[:, places].sum(axis=1) / wall_ns
        return _estimate(
            steps,
            share,
            replicates,
            why=steps.why_no_interval or small or rare,
            signed=signed,
            resolution=MIN_TERM_SHARE,
        )


def _estimate(
    steps: SampledSteps, value: float, replicates: Floats, *, why: str | None, signed: bool, resolution: float
) -> Estimate:
    """Give a value its interval, unless `why` not. Without `signed` it cannot be negative.

    Values below `resolution` have no interval, so those just above it are too large on average. An interval that
    reaches below it therefore contains all that is below.
    """
    low, high = None, None
    if why is None:
        low, high = _interval(replicates, float(value), sampled_ratio=float(steps.sampled.mean()))
        if low < resolution and high > -resolution:
            low, high = min(low, -resolution), max(high, resolution)
        low = low if signed else max(low, 0.0)
    return Estimate(estimate=float(value), low=low, high=high, steps=int(steps.sampled.sum()), reason=why)


def _shares(steps: SampledSteps) -> _Shares:
    whole, *replicates = _totals(steps)
    return _Shares(steps=steps, whole=_not_negative(whole, steps), replicates=np.array(replicates))


def _not_negative(totals: Floats, steps: SampledSteps) -> Floats:
    """Return the totals of terms without negative ones, except of terms whose records are negative.

    A regression on few windows can give a negative time. Then the largest estimated term is as much shorter.
    """
    signed = {term for (_, term), ns in steps.by_phase.items() if (ns < 0).any()}
    estimated = np.array([not steps.is_exact(term) for term in steps.terms])
    wrong = (totals < 0) & np.array([term not in signed for term in steps.terms])
    if not wrong.any():
        return totals
    result = np.where(wrong, 0.0, totals)
    result[np.argmax(np.where(estimated, result, -np.inf))] += totals[wrong].sum()
    return result


def _totals(steps: SampledSteps) -> Matrix:
    """Estimate the ns of each term over all steps, one column each: from all windows, then without each in turn."""
    rows = 1 + len(np.unique(steps.sampled_window))
    totals = {term: np.zeros(rows) for term in steps.terms}
    for phase, length_ns in steps.lengths_ns.items():
        rest_ns = np.full(rows, length_ns.sum())
        if phase in steps.inside:
            terms, inside = steps.inside[phase]
            parts = _regression(inside, length_ns, steps)
            for term, part_ns in zip(terms, parts.T, strict=True):
                totals[term] += part_ns
                rest_ns -= part_ns
        totals[phase] += rest_ns
    return np.column_stack(list(totals.values()))


def _regression(inside: Matrix, length: Floats, steps: SampledSteps) -> Matrix:
    """Estimate the total of each column of `inside` from the known lengths of all steps (Cochran 1977, section 7.10).

    The first row is from all windows; each other row leaves one out. Something that most steps lack does not follow the
    phase's length: its slope is 0.
    """
    weights, window = steps.weights, steps.sampled_window
    away = length - length.mean()
    known = away[steps.sampled]
    present: Floats = np.sign(np.abs(inside).sum(axis=1))

    def sums(values: Floats | Matrix) -> Matrix:
        by_window = np.zeros((int(window.max()) + 1, values[0].size))
        np.add.at(by_window, window, (weights * values.T).T.reshape(len(values), -1))
        whole: Matrix = by_window.sum(axis=0)
        return np.vstack([whole, whole - by_window])

    size = np.maximum(sums(np.ones_like(known)), np.finfo(float).tiny)
    means, mean_away = sums(inside) / size, sums(known) / size
    spread = sums(known**2) / size - mean_away**2
    together = sums((inside.T * known).T) / size - mean_away * means
    follows = (spread > NO_SPREAD * np.mean(length**2)) & (sums(present) / size >= MIN_PRESENCE)
    slopes = np.divide(together, spread, out=np.zeros_like(together), where=follows)
    result: Matrix = len(length) * (means - slopes * mean_away)
    return result


def _interval(replicates: Floats, estimate: float, *, sampled_ratio: float) -> tuple[float, float]:
    """Interval from the estimates without each window. Two degrees of freedom went into the regression."""
    count = len(replicates)
    effects = replicates.mean() - replicates
    variance = float((effects**2).mean())
    error = float(np.sqrt((1 - sampled_ratio) * (count - 1) * variance))
    quantile = student_quantile(count - 2)
    if error == 0:
        return estimate, estimate
    skewness = float((effects**3).mean()) / variance**1.5 * np.sqrt(count * (count - 1)) / (count - 2)
    below = max(quantile, _unskewed(quantile, skewness / np.sqrt(count)))
    above = max(quantile, -_unskewed(-quantile, skewness / np.sqrt(count)))
    return float(estimate - below * error), float(estimate + above * error)


def _unskewed(quantile: float, skewness: float) -> float:
    """Quantile of a mean whose skewness is `skewness`, by the inverse of Hall's cubic transformation."""
    if abs(skewness) < 1e-6:
        return quantile
    return float(3 * (np.cbrt(1 + skewness * (quantile - skewness / 6)) - 1) / skewness)


def student_quantile(freedom: int) -> float:
    """Two-sided quantile of CONFIDENCE of Student's t (Abramowitz and Stegun 1964, 26.7.5); 3 digits from 4 degrees."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160
    return z + first / freedom + second / freedom**2 + third / freedom**3 + fourth / freedom**4
