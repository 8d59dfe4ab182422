"""A row of every truth table: one quantity, its true value, and traincope's value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Texts of the table's cells."""

    part: str
    case: str
    quantity: str
    truth: str
    measured: str
    error: str = ""
    noise: str = ""
    """The machine's own error on the same sleeps at the same time; empty if no time was measured."""
    of_step: float | None = None
    """The error as a share of the step, if it is an error of time."""
    weighed: bool = True
    """False if the row is not judged."""
    holds: bool
