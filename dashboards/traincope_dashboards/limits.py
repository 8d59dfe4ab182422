"""From where on something is an alert. Every limit can be set: `traincope dashboards build --set hang_seconds=600`."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from traincope.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Raises UsageError unless all are positive."""

    window_seconds: float = 300
    """How far rates look back."""
    baseline_seconds: float = 21600
    """What is usual is the median over this long."""
    event_seconds: float = 900
    """How long an alert about a single event stays."""
    hold: float = 1.0
    """Factor on how long every condition must last before its alert fires."""
    mfu_drop_ratio: float = 0.1
    """MFU below its usual value, as a part of it."""
    straggler_ratio: float = 0.05
    """Time of each other rank on the host that one rank costs."""
    slow_host_ratio: float = 0.1
    """Share of step time by which a host's ranks wait less than the run's mean."""
    exposed_rise_ratio: float = 0.05
    """Share of step time by which an axis' exposed communication is above its usual value."""
    bubble_ratio: float = 1.25
    """Bubble over what theory says."""
    bubble_margin_ratio: float = 0.02
    """And beyond that by this share of a step, for by theory a zero-bubble schedule has none."""
    goodput_ratio: float = 0.8
    goodput_after_seconds: float = 3600
    """Before this much of the job's time, startup alone makes goodput low."""
    hang_seconds: float = 120
    """Or three steps, whichever is longer."""
    checkpoint_seconds: float = 7200
    agent_lag_seconds: float = 60
    recorder_ratio: float = 0.01
    """The recorder's CPU time over step time."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if not 0 < getattr(self, one.name) < math.inf:
                raise UsageError(f"the limit {one.name} must be positive")


def with_settings(limits: Limits, settings: Iterable[str]) -> Limits:
    """`limits` with those that `settings` ("name=number") name. Raises UsageError for an unknown name or no number."""
    known = {one.name for one in fields(limits)}
    changed: dict[str, float] = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in known:
            raise UsageError(f"there is no limit {name!r}; there are {', '.join(sorted(known))}")
        changed[name] = _number(setting, value)
    return replace(limits, **changed)


def _number(setting: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise UsageError(f"{setting!r} is not a limit: write NAME=NUMBER, e.g. hang_seconds=600") from None


def duration(seconds: float) -> str:
    """As PromQL writes it, in the largest whole unit, e.g. "5m"; milliseconds are the smallest."""
    milliseconds = max(1, round(seconds * 1000))
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"
