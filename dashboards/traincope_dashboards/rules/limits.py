"""Limits of the alerts. Set any of them with `traincope dashboards build --set hang_seconds=600`."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from traincope.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All limits. Raises UsageError unless all are positive."""

    window_seconds: float = 300
    """Window of rates."""
    baseline_seconds: float = 21600
    """Window of the median that counts as usual."""
    event_seconds: float = 900
    """How long an alert about a single event stays active."""
    hold: float = 1.0
    """Factor on the time that every condition must last before its alert fires."""
    mfu_drop_ratio: float = 0.1
    """Drop of MFU below its usual value, relative to that value."""
    straggler_ratio: float = 0.05
    """Share of each other rank's time on the host that they wait for one rank."""
    slow_host_ratio: float = 0.1
    """Share of step time by which a host's ranks stall less than the run's mean."""
    exposed_rise_ratio: float = 0.05
    """Share of step time by which an axis' exposed communication exceeds its usual value."""
    bubble_ratio: float = 1.25
    """Bubble divided by its theoretical value."""
    bubble_margin_ratio: float = 0.02
    """Additional margin as a share of step time, because the theoretical bubble of a zero-bubble schedule is 0."""
    goodput_ratio: float = 0.8
    goodput_after_seconds: float = 3600
    """Time of the job before which startup alone makes goodput low."""
    hang_seconds: float = 180
    """Time without records after which a job counts as hanging without the agent's verdict; at least three steps."""
    evaluation_seconds: float = 15
    """Interval at which Prometheus evaluates the alerts, whatever its own setting."""
    checkpoint_seconds: float = 7200
    agent_lag_seconds: float = 60
    recorder_ratio: float = 0.01
    """The recorder's CPU time divided by step time."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            if not 0 < getattr(self, limit.name) < math.inf:
                raise UsageError(f"the limit {limit.name} must be positive")


def with_settings(limits: Limits, settings: Iterable[str]) -> Limits:
    """Apply `settings` ("name=number") to `limits`. Raises UsageError for an unknown name or an invalid number."""
    known = {limit.name for limit in fields(limits)}
    changed: dict[str, float] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in known:
            raise UsageError(f"there is no limit {name!r}; choose one of {', '.join(sorted(known))}")
        changed[name] = _number(setting, value)
    return replace(limits, **changed)


def _number(setting: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"{setting!r} is not a limit: write NAME=NUMBER, e.g. hang_seconds=600") from None


def duration(seconds: float) -> str:
    """A duration in PromQL's notation, in the largest whole unit, e.g. "5m"; milliseconds are the smallest."""
    milliseconds = max(1, round(seconds * 1000))
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
