"""What every part of the truth tells: one fact, what it is, and what traincope says it is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Words, as the table shows them."""

    part: str
    case: str
    what: str
    truth: str
    measured: str
    error: str = ""
    noise: str = ""
    """What the machine itself did to the same sleeps meanwhile; empty where no time was measured."""
    of_step: float | None = None
    """The error as a share of the step, where it is one of time."""
    weighed: bool = True
    """Whether anything is said at all."""
    holds: bool
