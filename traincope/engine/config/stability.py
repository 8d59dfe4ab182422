"""The table `[stability]`: what the training does about a bad step, and when it halts."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from traincope.engine.config.checks import require, require_not_negative

HALTING_VALUES = ("loss", "grad_norm", "held_out_loss")
"""Logged values that are the same on all ranks, so that all ranks halt together."""
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Policy = Literal["record", "skip", "rollback"]
"""With skip, a bad step updates nothing, on any rank. With rollback, all ranks also go back to the last checkpoint, and
pass over the batches since then."""
_CONDITION = re.compile(
    r"\s*(\w+)\s*(<=|>=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StabilityConfig:
    """Policy for steps whose loss or gradient is not finite, or whose loss jumps."""

    not_finite: Policy = "record"
    """Policy for a step whose loss or gradient norm is NaN or infinite."""
    spike: Policy = "record"
    """Policy for a step whose loss jumps far above its previous losses."""
    max_rollbacks: int = 3
    """Rollbacks without a new checkpoint between them. The next bad step halts the training."""
    halt: str | None = None
    """Condition that ends the training, like "loss > 10": `loss`, `grad_norm` or `held_out_loss`, then <, <=, > or >=,
    then a number. A NaN fulfils none. None: the training never halts."""

    def __post_init__(self) -> None:
        require_not_negative(self.max_rollbacks, key="stability.max_rollbacks")
        if self.halt is not None:
            matched = _CONDITION.fullmatch(self.halt)
            require(
                matched is not None and matched[1] in HALTING_VALUES,
                f"stability.halt = {self.halt!r} is not understood; write one of {', '.join(HALTING_VALUES)}, then "
                "<, <=, > or >=, then a number, as in 'loss > 10'",
            )

    @property
    def judges(self) -> bool:
        """True if the loss decides in every step whether it updates the parameters."""
        return {self.not_finite, self.spike} != {"record"}

    def does(self, policy: Policy) -> bool:
        """Return whether a kind of bad step has this policy."""
        return policy in (self.not_finite, self.spike)

    def halts(self, **values: float | None) -> bool:
        """Return whether the named values fulfil the condition. A missing value does not."""
        matched = None if self.halt is None else _CONDITION.fullmatch(self.halt)
        value = None if matched is None else values.get(matched[1])
        return matched is not None and value is not None and COMPARISONS[matched[2]](value, float(matched[3]))
