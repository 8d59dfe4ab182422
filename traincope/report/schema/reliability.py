"""Types of a job's reliability: interruptions, mean time between them, badput, rolling goodput, checkpoints."""

from typing import Annotated, TypedDict

from traincope.report.schema.convert import result


class Interruption(TypedDict):
    attempt: str
    """Number of the attempt that it ended; of a logbook, the name of its run, or empty."""
    cause: str
    """One of `traincope.analysis.FaultKind`; of a logbook, its own word."""
    what: str
    count: int
    """Interruptions that the entry stands for; more than 1 only for a total of a logbook."""
    at: Annotated[int | None, result.at_ns]
    """Wall clock, ns since the epoch: the last record of the rank that failed, or of the attempt."""
    to_the_day: bool
    """True if only the day of `at` is known."""
    detect_ns: int | None
    """Time from `at` until the launcher, or for a hang the agent, noticed it; null: not recorded."""
    restart_ns: int | None
    """Time from the attempt's last record to the first step of the next, or to its end if it made no step; null: no
    other attempt followed. Of a logbook, the time without a run.
    """
    lost_steps: int | None
    lost_ns: int | None


class CauseCount(TypedDict):
    cause: str
    count: int
    ratio: float
    """Share of all interruptions."""


class Badput(TypedDict):
    part: str
    """A part of the elapsed time, as in goodput."""
    cause: str | None
    """Cause of the interruption; null: none caused it."""
    ns: int | None
    """A lower bound if `unknown` is not 0."""
    unknown: int
    """Interruptions whose time is unknown."""


class Mtbf(TypedDict):
    """Mean time between interruptions; `low_ns` and `high_ns` bound it with 95 % confidence (Garwood 1936)."""

    ns: float | None
    """null: there was no interruption, and `low_ns` is a one-sided bound."""
    low_ns: float
    high_ns: float | None
    running: bool
    """true: per time in which an attempt ran; false: per elapsed time."""


class Rolling(TypedDict):
    """Productive share of the `window_ns` before each instant; of a logbook, the share in which a run ran."""

    window_ns: int
    ends: Annotated[list[int], result.ends_ns]
    """Wall clock, ns since the epoch."""
    ratios: list[float]


class Saves(TypedDict):
    """Checkpoints of the last attempt, by its lowest rank."""

    count: int
    stall_ns: float
    """Mean time that training stops for one."""
    longest_ns: int
    background_ns: float | None
    """Time that one adds to the steps during it; null: unknown."""
    cost_ns: float
    """Both."""
    interval_ns: float | None
    """Mean time from the end of one stop to the begin of the next."""


class Cadence(TypedDict):
    """The recorded interval between checkpoints against Daly's (2006), in ns of training."""

    interval_ns: float
    best_ns: float
    best_low_ns: float
    """At the lower limit of the mean time between interruptions; `best_high_ns`: at the upper one."""
    best_high_ns: float
    lost_ratio: float
    """Expected share of time lost at the recorded interval."""
    best_lost_ratio: float
    gain_ratio: float
    certain: bool
    """true if the best interval loses less at both limits too."""


class Reliability(TypedDict):
    elapsed_ns: int
    running_ns: int | None
    """Time in which an attempt ran, from its first record to its last."""
    running_ratio: float | None
    productive_ratio: float | None
    """The same number as in goodput. Of a logbook, by its steps and times."""
    productive_low_ratio: float | None
    """Limits of the ratio of a logbook, which may have days only; null for a recorded job."""
    productive_high_ratio: float | None
    reason: str | None
    """Reason for a null in productive_ratio."""
    num_interruptions: int
    interruptions: list[Interruption]
    causes: list[CauseCount]
    badput: list[Badput]
    """The largest first. Of a recorded job, they sum to the elapsed time without the productive time."""
    mtbf: Mtbf | None
    mtbf_reason: str | None
    mean_detect_ns: float | None
    """Mean over the interruptions where it is known, like the next."""
    mean_restart_ns: float | None
    rolling: list[Rolling]
    saves: Saves | None
    """null: the last attempt saved no checkpoint."""
    cadence: Cadence | None
    """null: there was no interruption, or fewer than two saves."""
