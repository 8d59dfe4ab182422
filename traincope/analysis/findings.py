"""What a verdict is made of."""

from dataclasses import dataclass

HIGH, MEDIUM, UNKNOWN = "high", "medium", "unknown"
"""Two independent kinds of evidence agree; one; not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know, by what evidence, and what to do about it."""

    kind: str
    ranks: tuple[int, ...] = ()
    """Empty: all of them."""
    steps: tuple[int, ...] = ()
    """Empty: all of them."""
    confidence: str
    evidence: str
    advice: str
    estimated_gain_ratio: float | None = None
    """Share of step time saved if the term fell to its theory value; None where no theory says."""


def percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"
