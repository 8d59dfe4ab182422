"""Sampling: the share of steps recorded in detail, and what recording them cost, measured in the job itself.

Steps of a window and the light steps around it are an experiment without end: the same training, with and without
detail. Ranks wait for each other, so the job has one step time, the mean over its ranks.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from traincope.analysis.ledger.ledger import Ledger
from traincope.analysis.ledger.requested_windows import RequestedWindow, requested_windows
from traincope.analysis.student import CONFIDENCE
from traincope.arrays import Bools, Floats, Ints
from traincope.timeline import Timeline

FIRST_WITH_WINDOWS = 3
"""First version of the format in which steps tell whether they have detail."""
NEIGHBOURS = 8
"""Light steps on each side of a window that it is compared with."""
MIN_WINDOWS = 8
"""Fewer windows give no interval that could be trusted."""
RESAMPLES = 2_000
TRIMMED = 0.2
"""Share of the windows left out on each side: what else runs on the machine can double the time of a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredOverhead:
    """Relative lengthening of a step by its detail, with a bootstrap interval of 95 % over the windows.

    A trimmed mean of the windows (Wilcox, Introduction to Robust Estimation and Hypothesis Testing, 2012, section 3.3).

    Windows that record nothing have an interval that contains 0. The cost of light steps, and of installing hooks, is
    in neither side of the comparison.
    """

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Steps with and without detail: collectives, waits, pipeline actions."""

    steps: int
    """Complete steps."""
    sampled_steps: int
    """Steps that all ranks recorded in detail, without the first step of each window."""
    first_sampled: int | None
    last_sampled: int | None
    windows: int
    """Ranges of consecutive sampled steps."""
    budget_ratio: float | None
    """Largest share of a step that the recorder may take on average; None: no limit, or unknown."""
    own_ratio: float | None
    """Share of the steps' wall time that the recorder measured as its own."""
    measured_overhead: MeasuredOverhead | None
    """Sampled steps against the light steps around them; None: too few windows. Requested windows are not compared."""
    requested: tuple[RequestedWindow, ...]
    """Windows that a person or an anomaly requested; they enter no sum."""


NOT_SAMPLED = Sampling(
    steps=0,
    sampled_steps=0,
    first_sampled=None,
    last_sampled=None,
    windows=0,
    budget_ratio=None,
    own_ratio=None,
    measured_overhead=None,
    requested=(),
)


def sampling(timeline: Timeline, ledger: Ledger, *, own_ratio: float | None) -> Sampling:
    """Count the steps with detail, and compare them with the light steps around them."""
    numbers, length_ns, detailed = _job_steps(timeline, ledger)
    light = _light_steps(timeline)
    sampled = numbers[detailed]
    drawn = detailed & ~np.isin(numbers, list(timeline.requested_steps))
    budgets = [rank.info.budget for rank in timeline.run.ranks]
    return Sampling(
        steps=len(numbers),
        sampled_steps=len(sampled),
        first_sampled=int(sampled[0]) if len(sampled) else None,
        last_sampled=int(sampled[-1]) if len(sampled) else None,
        windows=len(_ranges(sampled)),
        budget_ratio=budgets[0] if budgets else None,
        own_ratio=own_ratio,
        measured_overhead=_measured_overhead(numbers, length_ns, drawn, np.isin(numbers, sorted(light))),
        requested=requested_windows(timeline),
    )


def _job_steps(timeline: Timeline, ledger: Ledger) -> tuple[Ints, Floats, Bools]:
    """Numbers of the timed steps, their mean length over the ranks, and whether all ranks recorded them in detail."""
    numbers = np.concatenate([rank.numbers[rank.timed] for rank in ledger.ranks] or [np.empty(0, dtype=np.int64)])
    lengths = np.concatenate([rank.wall_ns[rank.timed] for rank in ledger.ranks] or [np.empty(0, dtype=np.int64)])
    distinct, at = np.unique(numbers, return_inverse=True)
    mean = np.bincount(at, weights=lengths, minlength=len(distinct)) / np.maximum(
        np.bincount(at, minlength=len(distinct)), 1
    )
    undetailed = steps_without_detail(timeline, unwatched=ledger.unwatched_steps)
    return distinct, mean, ~np.isin(distinct, sorted(undetailed))


def steps_without_detail(timeline: Timeline, *, unwatched: Collection[int]) -> frozenset[int]:
    """Return the steps that some rank recorded without detail. `unwatched`: the ledger's, which older versions need."""
    if all(rank.info.version < FIRST_WITH_WINDOWS for rank in timeline.run.ranks):
        return frozenset(unwatched)
    return frozenset(step.number for rank in timeline.ranks for step in rank.steps if not step.detailed)


def _light_steps(timeline: Timeline) -> set[int]:
    """Steps without detail on any rank. The first step of a window has detail, although it is not sampled."""
    detailed = {step.number for rank in timeline.ranks for step in rank.steps if step.detailed}
    return {
        step.number
        for rank in timeline.ranks
        for step in rank.steps
        if step.number not in detailed and step.number + 1 not in detailed
    }


def _ranges(numbers: Ints) -> list[Ints]:
    """Ranges of consecutive numbers."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    return [part for part in parts if len(part)]


def _measured_overhead(numbers: Ints, length_ns: Floats, detailed: Bools, light: Bools) -> MeasuredOverhead | None:
    ratios = []
    for window in _ranges(numbers[detailed]):
        near = (numbers >= window[0] - 1 - NEIGHBOURS) & (numbers <= window[-1] + NEIGHBOURS) & light
        inside = np.isin(numbers, window)
        if near.any():
            # Medians: a checkpoint or an evaluation makes a step long that has nothing to do with its detail.
            ratios.append(np.median(length_ns[inside]) / np.median(length_ns[near]) - 1)
    if len(ratios) < MIN_WINDOWS:
        return None
    each = np.array(ratios)
    drawn = np.random.default_rng(0).integers(len(each), size=(RESAMPLES, len(each)))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(_trimmed_mean(each[drawn]), [tail, 100 - tail])
    return MeasuredOverhead(estimate=float(_trimmed_mean(each)), low=float(low), high=float(high))


def _trimmed_mean(values: Floats) -> Floats:
    """Mean along the last axis, without the smallest and the largest."""
    count = values.shape[-1]
    cut = int(TRIMMED * count)
    mean: Floats = np.sort(values)[..., cut : count - cut].mean(axis=-1)
    return mean
