"""Results of `traincope drift`: how far trainings in each format move away from the one in fp32. Needs no torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cattrs import structure

KINDS = ("input", "weight", "gradient")
"""Operands of a linear layer's products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Numbers of one operand over all steps and ranks, and how many the format could not keep."""

    numbers: int
    saturated: int
    """Above the format's largest number after scaling, infinite or NaN."""
    underflowed: int | None
    """Not zero, but rounded to zero. None: they were rounded before they could be observed."""

    @property
    def saturated_ratio(self) -> float:
        return self.saturated / self.numbers

    @property
    def underflowed_ratio(self) -> float | None:
        return None if self.underflowed is None else self.underflowed / self.numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatDrift:
    """One training in one format."""

    precision: str
    losses: tuple[float, ...]
    """Mean loss of each step, in nats per token."""
    skipped: int = 0
    """Steps that an overflow skipped."""
    loss_distance: float | None = None
    """Mean over steps of |loss - loss in fp32|, in nats. None if a loss is not finite."""
    parameter_distance: float | None = None
    """||p - p32|| / ||p32 - p0|| over all final parameters: p32 is fp32's end and p0 the start. None if not finite."""
    layers: Mapping[str, Mapping[str, Range]]
    """Layer -> operand -> its range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """All trainings, fp32 first, from the same weights and batches."""

    steps: int
    formats: tuple[FormatDrift, ...]
    refused: Mapping[str, str]
    """Format -> the reason why the configuration refuses it."""

    def document(self) -> dict[str, Any]:
        """As JSON has it; `read` is the reverse."""
        return asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Drift":
        return structure(document, cls)


def loss_distance(losses: tuple[float, ...], reference: tuple[float, ...]) -> float | None:
    """Mean absolute difference. None if a difference is not finite."""
    mean = sum(abs(loss - other) for loss, other in zip(losses, reference, strict=True)) / len(reference)
    return mean if mean < float("inf") else None
