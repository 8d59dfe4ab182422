"""Points of series on one node, and the steps and ranks from which they are computed."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from traincope.analysis import Analysis, RankLedger
from traincope.arrays import Bools, Floats, Ints
from traincope.metrics.metric import Metric
from traincope.timeline import RankTimeline

NS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Points of one series on one node. All arrays have one entry per point."""

    metric: Metric
    labels: tuple[object, ...]
    """Values of the metric's labels after run and host."""
    times_ns: Ints
    values: Ints | Floats
    """Increments of a counter, or values that a histogram counts; both in ns if the metric is in seconds. For a gauge
    the values, or the numerators over `wholes`.
    """
    wholes: Ints | None = None
    """Denominators of a ratio. The ratio of several points is the sum of the values over the sum of the wholes."""
    total_ns: int | None = None
    """Exact sum of a histogram's values, if for some of them only the bucket is known."""
    rank: int | None = None
    """The rank that logged the value, if several ranks may log the series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSteps:
    """Steps of one rank. All arrays have one entry per step."""

    timeline: RankTimeline
    measured: RankTimeline
    """The timeline that the ledger measures: on the clock of the rank's GPU, or `timeline`."""
    ledger: RankLedger
    numbers: Ints
    ends_ns: Ints
    new: Bools
    """True if the step belongs to the window. In a finished run all do."""
    counted: Bools
    """True if the step is new and enters the sums of time. The warm-up step does not."""

    @classmethod
    def of(
        cls,
        timeline: RankTimeline,
        ledger: RankLedger,
        *,
        measured: RankTimeline,
        new: Collection[int] | None = None,
    ) -> "RankSteps":
        """Select steps, counted as in the ledger. `new`: numbers of the window's steps. None: all."""
        numbers = np.array([step.number for step in measured.steps], dtype=np.int64)
        chosen = np.ones(len(numbers), dtype=bool) if new is None else np.isin(numbers, list(new))
        return cls(
            timeline=timeline,
            measured=measured,
            ledger=ledger,
            numbers=numbers,
            ends_ns=np.array([step.end_ns for step in measured.steps], dtype=np.int64),
            new=chosen,
            counted=ledger.counted & chosen,
        )

    @property
    def number(self) -> int:
        return self.timeline.rank

    def ends_of(self, steps: Ints) -> tuple[Ints, Ints]:
        """Positions in `steps` that are counted steps of this rank, and the end of each such step in ns."""
        numbers, ends = self.numbers[self.counted], self.ends_ns[self.counted]
        if not len(numbers):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        order = np.argsort(numbers, kind="stable")
        at = np.minimum(np.searchsorted(numbers[order], steps), len(numbers) - 1)
        matches = np.flatnonzero(numbers[order][at] == steps)
        return matches, ends[order][at[matches]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Ranks of one host, and the analysis that contains them."""

    analysis: Analysis
    ranks: Sequence[RankSteps]


def bucket_of(seconds: Floats, *, bounds: Sequence[float]) -> Ints:
    """Index of each value's bucket. An upper bound belongs to its bucket."""
    return np.searchsorted(np.asarray(bounds), seconds, side="left").astype(np.int64)


def sum_by_step(ranks: Sequence[RankSteps], *columns: Sequence[Ints | Floats]) -> tuple[Ints, list[Ints | Floats]]:
    """End of each counted step on the last rank, and the sum over the ranks of each column (one array per rank)."""
    kept = [rank.counted for rank in ranks]
    numbers = np.concatenate([rank.numbers[chosen] for rank, chosen in zip(ranks, kept, strict=True)])
    ends = np.concatenate([rank.ends_ns[chosen] for rank, chosen in zip(ranks, kept, strict=True)])
    distinct, at = np.unique(numbers, return_inverse=True)
    times = np.zeros(len(distinct), dtype=np.int64)
    np.maximum.at(times, at, ends)
    sums: list[Ints | Floats] = []
    for column in columns:
        values = np.concatenate([array[chosen] for array, chosen in zip(column, kept, strict=True)])
        sums.append(np.zeros(len(distinct), dtype=values.dtype))
        np.add.at(sums[-1], at, values)
    return times, sums


def to_ints(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)
