"""An alerting rule, and how expressions that several of them need are written."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from traincope.metrics import Metric
from traincope_dashboards.limits import Limits, duration
from traincope_dashboards.scope import Recorded, Scope

PREFIX = "Traincope"


class Severity(StrEnum):
    CRITICAL = "critical"
    """Somebody must act now: the job stands still or dies."""
    WARNING = "warning"
    """Time or money is lost."""
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Texts are Prometheus' templates: `{{ $value }}` is the expression's value."""

    name: str
    """Without prefix, e.g. "SlowHost"."""
    expression: str
    hold_seconds: float
    """How long it must be so before the alert fires; 0 for single events."""
    severity: Severity
    summary: str
    """One line for a pager."""
    description: str
    """The numbers, and how they compare."""
    board: str
    """uid of the dashboard on which it is seen."""

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    @property
    def slug(self) -> str:
        """Name of its runbook, e.g. "slow-host"."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.name).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What alerts are written over: all runs, and what the recording rules record of them."""

    limits: Limits

    @property
    def all(self) -> Scope:
        return Scope(window=duration(self.limits.window_seconds), from_rules=True)

    def recorded(self, rule: Recorded) -> str:
        return self.all.recorded(rule)

    def usual(self, rule: Recorded) -> str:
        """Its median over the baseline."""
        return f"quantile_over_time(0.5, {self.recorded(rule)}[{duration(self.limits.baseline_seconds)}])"

    def grown(self, metric: Metric, *, by: Sequence[str], **matchers: str) -> str:
        """By how much a counter has grown lately."""
        ago = duration(self.limits.event_seconds)
        return f"sum by ({', '.join(by)}) (increase({self.all.of(metric, **matchers)}[{ago}])) > 0"

    def new(self, metric: Metric, *, by: Sequence[str], **matchers: str) -> str:
        """The same for a counter whose series begins with its first event: one that is new counts in full."""
        series, labels = self.all.of(metric, **matchers), ", ".join(by)
        ago = duration(self.limits.event_seconds)
        begun = f"sum by ({labels}) ({series}) unless sum by ({labels}) ({series} offset {ago})"
        return f"{self.grown(metric, by=by, **matchers)} or ({begun}) > 0"
