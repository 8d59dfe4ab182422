"""What the ranks of a pipeline do: the words that orders, replays and drawings share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from traincope.errors import UsageError

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = "F", "B", "I", "W"
"""A backward is whole (B), or split into the input's gradient (I) and the weights' (W)."""


class Action(NamedTuple):
    """One F, B, I or W of a stage on a microbatch. A tuple, for a long run has millions."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        """As torch writes it: `1F0` is stage 1's forward of microbatch 0."""
        return f"{self.stage}{self.kind}{self.microbatch}"


Order = tuple[Action, ...]
"""What one rank does, first to last."""

Orders = Mapping[int, Order]
"""Rank -> what it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long one action of one stage takes, in any unit; raises UsageError unless all are positive numbers."""

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (
            ("forward", self.forward),
            ("backward_input", self.backward_input),
            ("backward_weight", self.backward_weight),
        ):
            if not 0 < value < math.inf:
                raise UsageError(f"{name} = {value:g} must be {'finite' if value > 0 else 'greater than 0'}")

    @property
    def backward(self) -> float:
        """Of a whole backward."""
        return self.backward_input + self.backward_weight

    @property
    def all(self) -> float:
        """Of a microbatch on one stage."""
        return self.forward + self.backward

    def of(self, kind: str) -> float:
        return {
            FORWARD: self.forward,
            BACKWARD: self.backward,
            BACKWARD_INPUT: self.backward_input,
            BACKWARD_WEIGHT: self.backward_weight,
        }[kind]


EQUAL = Times()
"""Papers' usual assumption: F, I and W take one unit each, so B takes two."""
