"""An alerting rule, and helpers for its expressions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from traincope.metrics.metric import Metric
from traincope_dashboards.rules.limits import Limits, duration
from traincope_dashboards.scope import Recorded, Scope

PREFIX = "Traincope"


class Severity(StrEnum):
    CRITICAL = "critical"
    """Act now: the job has stopped or is about to."""
    WARNING = "warning"
    """The job loses time or money."""
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. Texts are Prometheus templates: `{{ $value }}` is the expression's value."""

    name: str
    """Name without prefix, e.g. "SlowHost"."""
    expression: str
    hold_seconds: float
    """How long the condition must last before the alert fires; 0 for single events."""
    severity: Severity
    summary: str
    """One line for a pager."""
    description: str
    """Measured value and limit."""
    board: str
    """uid of the dashboard that shows the problem."""

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    @property
    def slug(self) -> str:
        """Name of its runbook, e.g. "slow-host"."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.name).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Expressions over all runs, for the alerts."""

    limits: Limits

    @property
    def all(self) -> Scope:
        return Scope(window=duration(self.limits.window_seconds), from_rules=True)

    def recorded(self, rule: Recorded) -> str:
        return self.all.recorded(rule)

    def usual(self, rule: Recorded) -> str:
        """The rule's median over the baseline."""
        return f"quantile_over_time(0.5, {self.recorded(rule)}[{duration(self.limits.baseline_seconds)}])"

    def grown_by(self, metric: Metric, *, by: Sequence[str], **matchers: str) -> str:
        """Recent increase of a counter."""
        ago = duration(self.limits.event_seconds)
        return f"sum by ({', '.join(by)}) (increase({self.all.series_of(metric, **matchers)}[{ago}])) > 0"

    def new_by(self, metric: Metric, *, by: Sequence[str], **matchers: str) -> str:
        """Recent increase of a counter whose series begins with its first event; a new series counts in full."""
        series, labels = self.all.series_of(metric, **matchers), ", ".join(by)
        ago = duration(self.limits.event_seconds)
        begun = f"sum by ({labels}) ({series}) unless sum by ({labels}) ({series} offset {ago})"
        return f"{self.grown_by(metric, by=by, **matchers)} or ({begun}) > 0"
