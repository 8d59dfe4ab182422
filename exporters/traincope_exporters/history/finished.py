"""A finished run as the series' makers see it: its ranks' steps, and who shares which labels."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from traincope.analysis import Analysis, RankLedger
from traincope.timeline import Instances, RankTimeline, match_instances
from traincope_exporters.history.series import Ints

NS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One that completed steps; arrays have one entry a step."""

    timeline: RankTimeline
    ledger: RankLedger
    host: str
    numbers: Ints
    ends_ns: Ints

    @property
    def number(self) -> int:
        return self.timeline.rank

    def ends_of(self, steps: Ints) -> tuple[Ints, Ints]:
        """Which of these step numbers are counted ones of this rank (positions), and when they ended."""
        numbers, ends = self.numbers[self.ledger.counted], self.ends_ns[self.ledger.counted]
        if not len(numbers):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        order = np.argsort(numbers, kind="stable")
        at = np.minimum(np.searchsorted(numbers[order], steps), len(numbers) - 1)
        there = np.flatnonzero(numbers[order][at] == steps)
        return there, ends[order][at[there]]


@dataclass(frozen=True)
class Finished:
    """A run and what was found out about it."""

    analysis: Analysis

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        ledgers = {rank.rank: rank for rank in self.analysis.ledger.ranks}
        hosts = {rank.rank: rank.info.host.name for rank in self.analysis.timeline.run.ranks}
        return tuple(
            Rank(
                timeline=rank,
                ledger=ledgers[rank.rank],
                host=hosts[rank.rank],
                numbers=np.array([step.number for step in rank.steps], dtype=np.int64),
                ends_ns=np.array([step.end_ns for step in rank.steps], dtype=np.int64),
            )
            for rank in self.analysis.timeline.ranks
            if rank.rank in ledgers and rank.steps
        )

    @cached_property
    def instances(self) -> Instances:
        return match_instances(self.analysis.timeline)

    @cached_property
    def begin_ns(self) -> int:
        """When the first step began: before it nothing was counted."""
        return min(rank.timeline.steps[0].start_ns for rank in self.ranks)

    @cached_property
    def end_ns(self) -> int:
        return max(int(rank.ends_ns.max()) for rank in self.ranks)

    def groups(self, labels: Sequence[str]) -> Iterator[tuple[tuple[str, ...], list[Rank]]]:
        """The ranks that share a series with these labels, by the values of those of them that tell ranks apart."""
        shared: dict[tuple[str, ...], list[Rank]] = {}
        for rank in self.ranks:
            told = self._labels(rank)
            key = tuple(told[label] for label in labels if label in told)
            shared.setdefault(key, []).append(rank)
        yield from shared.items()

    def _labels(self, rank: Rank) -> Mapping[str, str]:
        stage = rank.timeline.stage
        return {
            "run": self.analysis.timeline.run.info.id,
            "host": rank.host,
            "rank": str(rank.number),
            "stage": "" if stage is None else str(stage),
        }


def by_step(ranks: list[Rank], *columns: list[Ints]) -> tuple[Ints, list[Ints]]:
    """When each counted step had ended on all these ranks, and the sum over them of each column (an array a rank)."""
    kept = [rank.ledger.counted for rank in ranks]
    numbers = np.concatenate([rank.numbers[own] for rank, own in zip(ranks, kept, strict=True)])
    ends = np.concatenate([rank.ends_ns[own] for rank, own in zip(ranks, kept, strict=True)])
    distinct, at = np.unique(numbers, return_inverse=True)
    times = np.zeros(len(distinct), dtype=np.int64)
    np.maximum.at(times, at, ends)
    sums = []
    for column in columns:
        sums.append(np.zeros(len(distinct), dtype=np.int64))
        np.add.at(sums[-1], at, np.concatenate([values[own] for values, own in zip(column, kept, strict=True)]))
    return times, sums
