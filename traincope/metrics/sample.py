"""Value of one series at one moment."""

from dataclasses import dataclass

from traincope.metrics.metric import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Counts of a histogram since the attempt began."""

    counts: tuple[int, ...]
    """Count of each bucket alone, not cumulative. The last bucket is above all upper bounds."""
    sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemplar:
    """One value that a histogram counted, and its origin."""

    value: float
    labels: dict[str, str]
    """For example {"step": "1200", "rank": "3"}."""
    wall_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Value of one series at one moment."""

    metric: Metric
    labels: tuple[str, ...]
    """Values of `metric.labels`, in their order."""
    value: float | Distribution
    """A number; for a histogram its distribution; for an info 1."""
    exemplars: tuple[Exemplar, ...] = ()
    """At most one per bucket of a histogram."""
