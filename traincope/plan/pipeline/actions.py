"""Actions of a pipeline's ranks: the vocabulary of orders, replays and figures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from traincope.errors import UsageError

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = "F", "B", "I", "W"
"""A backward is whole (B), or split into the input's gradient (I) and the weights' gradient (W)."""


class Action(NamedTuple):
    """One F, B, I or W of a stage on a microbatch. It is a tuple because a long run has millions."""

    kind: str
    """F and B, or F, I and W if backward is split."""
    stage: int
    microbatch: int

    def __str__(self) -> str:
        """torch's notation: `1F0` is stage 1's forward of microbatch 0."""
        return f"{self.stage}{self.kind}{self.microbatch}"


Order = tuple[Action, ...]
"""Actions of one rank, first to last."""

Orders = Mapping[int, Order]
"""Rank -> its actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Duration of each action of one stage, in any unit. Raises UsageError unless all are positive and finite."""

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
                raise UsageError(f"{name} is {value:g}; it must be {'finite' if value > 0 else 'greater than 0'}")

    @property
    def backward(self) -> float:
        """Duration of a whole backward."""
        return self.backward_input + self.backward_weight

    @property
    def total(self) -> float:
        """Duration of all actions of a microbatch on one stage."""
        return self.forward + self.backward

    def duration(self, kind: str) -> float:
        return {
            FORWARD: self.forward,
            BACKWARD: self.backward,
            BACKWARD_INPUT: self.backward_input,
            BACKWARD_WEIGHT: self.backward_weight,
        }[kind]


EQUAL = Times()
"""The usual assumption of papers: F, I and W take one unit each, so B takes two."""
