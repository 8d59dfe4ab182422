"""A finished run as the makers of series need it: steps by rank, and ranks grouped by labels."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from traincope.analysis import Analysis
from traincope.metrics.metric import NODE_LABELS, Metric
from traincope.metrics.values import NODE_METRICS, ROW_METRICS, Node, Points, RankSteps, row_points, step_rows

NS = 1e9


@dataclass(frozen=True)
class FinishedRun:
    """A run and its analysis."""

    analysis: Analysis

    @cached_property
    def ranks(self) -> tuple[RankSteps, ...]:
        """Ranks that completed steps."""
        ledgers = {rank.rank: rank for rank in self.analysis.ledger.ranks}
        return tuple(
            RankSteps.of(rank, ledgers[rank.rank], measured=measured)
            for rank, measured in zip(self.analysis.timeline.ranks, self.analysis.context.measured.ranks, strict=True)
            if rank.rank in ledgers and measured.steps
        )

    @cached_property
    def hosts(self) -> Mapping[int, str]:
        """Rank -> host name."""
        return {rank.rank: rank.info.host.name for rank in self.analysis.timeline.run.ranks}

    def points(self, metric: Metric) -> Iterator[tuple[tuple[str, ...], list[Points]]]:
        """(Run, host) and the metric's points there."""
        for place, ranks in self.groups(NODE_LABELS):
            points: Iterable[Points]
            if metric in ROW_METRICS:
                points = self._row_points[place]
            else:
                points = NODE_METRICS[metric.name](Node(analysis=self.analysis, ranks=ranks))
            yield place, [points_of_series for points_of_series in points if points_of_series.metric is metric]

    @cached_property
    def _row_points(self) -> Mapping[tuple[str, ...], list[Points]]:
        ledger = self.analysis.ledger
        light = frozenset(ledger.unwatched_steps)
        return {
            place: list(
                row_points(
                    [row for rank in ranks for row in step_rows(rank.ledger, rank.measured, light=light)],
                    excluded={*ledger.excluded_steps, *ledger.dropped_steps},
                    ends_ns={(rank.number, step.number): step.end_ns for rank in ranks for step in rank.measured.steps},
                )
            )
            for place, ranks in self.groups(NODE_LABELS)
        }

    @cached_property
    def begin_ns(self) -> int:
        """Start of the first step. Counters begin there."""
        return min(rank.measured.steps[0].start_ns for rank in self.ranks)

    @cached_property
    def end_ns(self) -> int:
        return max(int(rank.ends_ns.max()) for rank in self.ranks)

    def groups(self, labels: Sequence[str]) -> Iterator[tuple[tuple[str, ...], list[RankSteps]]]:
        """Ranks that share a series with these labels, by the values of the labels that differ between ranks."""
        shared: dict[tuple[str, ...], list[RankSteps]] = {}
        for rank in self.ranks:
            label_values = self._labels(rank)
            key = tuple(label_values[label] for label in labels if label in label_values)
            shared.setdefault(key, []).append(rank)
        yield from shared.items()

    def _labels(self, rank: RankSteps) -> Mapping[str, str]:
        stage = rank.timeline.stage
        return {
            "run": self.analysis.timeline.run.info.label,
            "host": self.hosts[rank.number],
            "rank": str(rank.number),
            "stage": "" if stage is None else str(stage),
        }
