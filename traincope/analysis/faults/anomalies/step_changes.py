"""Lasting changes of the step time in a run that records detail in windows.

Every step has its length and some terms, so a change is found where no window shows its cause.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traincope.analysis.faults.anomalies.slowness import SCALE, longest_steps
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.arrays import Floats, Ints
from traincope.timeline import Timeline

MIN_STEPS = 16
"""Fewest steps on each side of a change."""
MIN_RATIO = 0.1
"""Smallest change, as a share of the shorter median step."""
MAX_PROBABILITY = 0.001
"""Largest probability of a change in steps that do not change."""
MIN_EXPLAINED = 0.5
"""Share of the change that one rank's term must have grown by to be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermGrowth:
    """Growth of a term of one rank, which every step records."""

    rank: int
    term: str
    before_ns: int
    """Median per step."""
    after_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """A change of the median step, up to the next change."""

    step: int
    """First step after it."""
    before_ns: int
    after_ns: int
    lost_ratio: float
    """Time above the earlier median, as a share of the time of all steps; negative if steps became shorter."""
    windows: tuple[tuple[int, int] | None, tuple[int, int] | None]
    """(First, last) sampled steps of the nearest windows before and after it; None: there is none."""
    growth: TermGrowth | None
    """None: no term of a single rank that every step records explains it."""


def step_changes(timeline: Timeline, ledger: Ledger) -> tuple[StepChange, ...]:
    """Find the lasting changes between windows, in order of steps; empty if all steps have detail."""
    if not ledger.is_thinned:
        return ()
    longest = longest_steps(timeline, ledger)
    numbers = np.array(sorted(longest), dtype=np.int64)
    lengths = np.array([longest[number] for number in numbers.tolist()], dtype=np.float64)
    sampled = np.unique(np.concatenate([rank.numbers[rank.detailed] for rank in ledger.ranks]))
    sampled = sampled[~np.isin(sampled, list(timeline.requested_steps))]
    places = [0, *sorted(_changes(lengths, first=0)), len(numbers)]
    changes = []
    for start, at, end in zip(places, places[1:], places[2:], strict=False):
        before_ns, after_ns = float(np.median(lengths[start:at])), float(np.median(lengths[at:end]))
        if int(numbers[at]) in sampled:
            continue  # detail shows it
        changes.append(
            StepChange(
                step=int(numbers[at]),
                before_ns=round(before_ns),
                after_ns=round(after_ns),
                lost_ratio=(after_ns - before_ns) * (end - at) / float(lengths.sum()),
                windows=_nearest(sampled, int(numbers[at])),
                growth=_growth(ledger, numbers[start:at], numbers[at:end], grown_ns=after_ns - before_ns),
            )
        )
    return tuple(changes)


def _changes(lengths: Floats, *, first: int) -> Iterator[int]:
    """Yield the position of each change, by binary segmentation."""
    at = change_point(lengths)
    if at is not None:
        yield from _changes(lengths[:at], first=first)
        yield first + at
        yield from _changes(lengths[at:], first=first + at)


def change_point(lengths: Floats) -> int | None:
    """Find the position from which values are different; None if they are not clearly different.

    Pettitt's test (1979, "A non-parametric approach to the change-point problem"): rank sums, so single slow steps do
    not count. The medians must also differ by MIN_RATIO, and by more than the values differ among themselves.
    """
    count = len(lengths)
    if count < 2 * MIN_STEPS:
        return None
    _, place, equal = np.unique(lengths, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(equal) - (equal - 1) / 2)[place]
    statistic = np.abs(2 * np.cumsum(ranks) - np.arange(1, count + 1) * (count + 1))
    at = 1 + int(np.argmax(statistic))
    if not MIN_STEPS <= at <= count - MIN_STEPS:
        return None
    probability = 2 * np.exp(-6 * statistic[at - 1] ** 2 / (count**3 + count**2))
    before, after = lengths[:at], lengths[at:]
    difference = abs(float(np.median(after) - np.median(before)))
    spread = max(SCALE * float(np.median(np.abs(part - np.median(part)))) for part in (before, after))
    shorter = min(float(np.median(before)), float(np.median(after)))
    clear = probability < MAX_PROBABILITY and difference >= MIN_RATIO * shorter and difference > spread
    return at if clear and shorter > 0 else None  # steps may be nothing but the recorder's own time


def _nearest(sampled: Ints, step: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    windows = [(int(part[0]), int(part[-1])) for part in np.split(sampled, np.flatnonzero(np.diff(sampled) > 1) + 1)]
    before = [window for window in windows if window[1] < step]
    after = [window for window in windows if window[0] > step]
    return before[-1] if before else None, after[0] if after else None


def _growth(ledger: Ledger, before: Ints, after: Ints, *, grown_ns: float) -> TermGrowth | None:
    """Find the rank whose term grew by most of the change, if no other rank's did."""
    growths = [
        TermGrowth(
            rank=rank.rank,
            term=term,
            before_ns=_median_ns(rank, ns, before),
            after_ns=_median_ns(rank, ns, after),
        )
        for rank in ledger.ranks
        for term in rank.every_step
        if (ns := rank.terms.get(term)) is not None
    ]
    enough = [growth for growth in growths if growth.after_ns - growth.before_ns >= MIN_EXPLAINED * grown_ns > 0]
    return enough[0] if len(enough) == 1 else None


def _median_ns(rank: RankLedger, ns: Ints, steps: Ints) -> int:
    chosen = np.isin(rank.numbers, steps)
    return round(float(np.median(ns[chosen]))) if chosen.any() else 0
