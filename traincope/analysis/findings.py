"""What a verdict is made of."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

HIGH, MEDIUM, UNKNOWN = "high", "medium", "unknown"
"""Two independent kinds of evidence agree; one; not enough."""

WORTH_SAYING = 0.05
"""Share of step time below which a loss is not mentioned."""


class FindingKind(StrEnum):
    """What a finding is about; the value is what JSON says."""

    KILLED_RANK = "killed_rank"
    FAILED_RANK = "failed_rank"
    STOPPED_JOB = "stopped_job"
    """Nobody died: it was told to stop from outside."""
    NO_END_RECORDED = "no_end_recorded"
    MISSING_RANK = "missing_rank"
    NO_STEPS = "no_steps"
    PIPELINE_BUBBLE = "pipeline_bubble"
    EXPOSED_WAIT = "exposed_wait"
    EXPOSED_TRANSFER = "exposed_transfer"
    EXPOSED_COMMUNICATION = "exposed_communication"
    STRAGGLER = "straggler"
    HOT_EXPERT = "hot_expert"
    """Experts of some ranks get more tokens than those of others."""
    DATA_BOUND = "data_bound"
    CHECKPOINT_STALL = "checkpoint_stall"
    GC = "gc"
    COMPILE = "compile"
    SYNC = "sync"
    EVALUATION = "evaluation"
    UNATTRIBUTED = "unattributed"
    GPU_IDLE = "gpu_idle"
    """By kernel traces, as the next."""
    EXPOSED_MEMORY = "exposed_memory"
    MEMORY_GROWTH = "memory_growth"
    FAULTS = "faults"
    """No time is lost, but something else went wrong."""
    HEALTHY = "healthy"
    """Nothing is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know, by what evidence, and what to do about it."""

    kind: FindingKind
    ranks: tuple[int, ...] = ()
    """Empty: all of them."""
    steps: tuple[int, ...] = ()
    """Empty: all of them."""
    confidence: str
    evidence: str
    advice: str
    estimated_gain_ratio: float | None = None
    """Share of step time saved if the term fell to its theory value; None where no theory says."""


Weighted = Iterator[tuple[float, Finding]]
"""Findings with the share of step time by which they are ordered."""


def percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"
