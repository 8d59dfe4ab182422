"""A finding of a preflight."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    SLOW_PRODUCTS = "slow_matrix_products"
    SLOW_MEMORY = "slow_memory"
    SLOW_MESSAGES = "slow_messages"
    """All messages of a rank are slow."""
    SLOW_LINK = "slow_link"
    """Messages between two ranks are slow; each of them is fast with others."""
    UNBALANCED_STAGE = "unbalanced_stage"
    BUBBLE = "pipeline_bubble"


OF_THE_JOB = frozenset({Kind.UNBALANCED_STAGE, Kind.BUBBLE})
"""Findings about the configuration. They fail the job and no host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, with its evidence and remedy."""

    kind: Kind
    ranks: tuple[int, ...]
    """Ranks at fault; of a link its two ends; of a stage those that hold it."""
    factor: float
    """Multiple of the usual time; of a bubble the idle share of the step."""
    evidence: str
    advice: str
    stage: int | None = None
