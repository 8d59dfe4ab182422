"""Scopes: the series and the rate window of a query over the catalogue's metrics.

A dashboard's scope holds its template variables, a rule's scope is empty. Both render the same expressions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from traincope.metrics.catalogue import CATALOGUE
from traincope.metrics.metric import Metric

LABELS = frozenset(label for metric in CATALOGUE for label in metric.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    matchers: Mapping[str, str] = field(default_factory=dict)
    """Label -> PromQL matcher, e.g. {"run": '="$run"'}. It does not apply to metrics without the label."""
    window: str
    """Window of rates in PromQL's notation, e.g. "5m" or "$__rate_interval"."""
    from_rules: bool = False
    """True: query recorded rules by name; False: compute their expressions."""

    def where(self, **matchers: str) -> "Scope":
        """Narrow the scope for all metrics that have the labels. Raises ValueError for a label of no metric."""
        if unknown := matchers.keys() - LABELS:
            raise ValueError(f"no metric has the labels {sorted(unknown)}")
        return replace(self, matchers={**self.matchers, **matchers})

    def without(self, label: str) -> "Scope":
        """Remove the filter on a label."""
        return replace(self, matchers={name: text for name, text in self.matchers.items() if name != label})

    def series_of(self, metric: Metric, *, suffix: str = "", **matchers: str) -> str:
        """Series of the metric. `suffix` is that of a histogram, e.g. "_bucket". Raises ValueError for a missing
        label.
        """
        if unknown := matchers.keys() - set(metric.labels):
            raise ValueError(f"{metric.prometheus} has no labels {sorted(unknown)}")
        shared = {label: matcher for label, matcher in self.matchers.items() if label in metric.labels}
        return metric.prometheus + suffix + _braces({**shared, **matchers})

    def rate(self, metric: Metric, *, suffix: str = "", **matchers: str) -> str:
        """Increase per second of a counter, or of a histogram's part."""
        return f"rate({self.series_of(metric, suffix=suffix, **matchers)}[{self.window}])"

    def recorded(self, rule: "Recorded") -> str:
        """The rule's recorded series, or its expression in this scope."""
        if not self.from_rules:
            return rule.expression(self)
        return rule.name + _braces({label: text for label, text in self.matchers.items() if label in rule.labels})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recording rule."""

    name: str
    """Name in Prometheus' convention: level:metric:operations."""
    labels: tuple[str, ...]
    """Labels of the recorded series."""
    expression: Callable[[Scope], str]


def _braces(matchers: Mapping[str, str]) -> str:
    inside = ",".join(f"{label}{matcher}" for label, matcher in matchers.items())
    return f"{{{inside}}}" if inside else ""
