"""Queries are written over metrics of the catalogue; a scope says whose series, and how far a rate looks back.

A dashboard's scope holds its template variables, a rule's scope holds nothing: both render the same
expressions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from traincope.metrics import CATALOGUE, Metric

LABELS = frozenset(label for metric in CATALOGUE for label in metric.labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    matchers: Mapping[str, str] = field(default_factory=dict)
    """Label -> PromQL matcher, e.g. {"run": '="$run"'}; a metric without the label is not filtered by it."""
    window: str
    """How far rates look back, as PromQL writes it, e.g. "5m" or "$__rate_interval"."""
    from_rules: bool = False
    """Whether what rules record is asked by its recorded name, and not computed anew."""

    def where(self, **matchers: str) -> "Scope":
        """Narrower by these, for all metrics that have the labels. Raises ValueError for a label no metric has."""
        if unknown := matchers.keys() - LABELS:
            raise ValueError(f"no metric has the labels {sorted(unknown)}")
        return replace(self, matchers={**self.matchers, **matchers})

    def without(self, label: str) -> "Scope":
        """Wider: not filtered by the label."""
        return replace(self, matchers={one: text for one, text in self.matchers.items() if one != label})

    def of(self, metric: Metric, *, suffix: str = "", **matchers: str) -> str:
        """The metric's series; `suffix` is a histogram's, e.g. "_bucket". Raises ValueError for a label it lacks."""
        if unknown := matchers.keys() - set(metric.labels):
            raise ValueError(f"{metric.prometheus} has no labels {sorted(unknown)}")
        own = {label: matcher for label, matcher in self.matchers.items() if label in metric.labels}
        return metric.prometheus + suffix + _braces({**own, **matchers})

    def rate(self, metric: Metric, *, suffix: str = "", **matchers: str) -> str:
        """Growth a second of a counter, or of a histogram's part."""
        return f"rate({self.of(metric, suffix=suffix, **matchers)}[{self.window}])"

    def recorded(self, rule: "Recorded") -> str:
        """What the rule records: by its name, or its expression in this scope."""
        if not self.from_rules:
            return rule.expression(self)
        return rule.name + _braces({label: text for label, text in self.matchers.items() if label in rule.labels})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recording rule."""

    name: str
    """As Prometheus' documentation has it: level:metric:operations."""
    labels: tuple[str, ...]
    """That the recorded series have."""
    expression: Callable[[Scope], str]


def _braces(matchers: Mapping[str, str]) -> str:
    inside = ",".join(f"{label}{matcher}" for label, matcher in matchers.items())
    return f"{{{inside}}}" if inside else ""
