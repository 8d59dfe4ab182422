"""Decide which steps update nothing: those with values that are not finite, or with a loss far above the others."""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from traincope.engine.config import StabilityConfig

WINDOW = 64
"""Number of previous losses that a loss is compared with."""
MIN_LOSSES = 32
"""Fewest previous losses for a spike."""
SIGMAS = 10.0
SCALE = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
MIN_RISE = 0.1
"""Share of the median that a spike must rise by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadStep:
    """A step that updates nothing."""

    why: str
    rolls_back: bool
    """Its policy is to go back to the last checkpoint as well."""


class BadSteps:
    """Judges one step after the other. All ranks give it the same values, so they decide alike."""

    def __init__(self, config: StabilityConfig) -> None:
        self._config = config
        self._losses: deque[float] = deque(maxlen=WINDOW)
        """Finite losses of the steps that updated the parameters."""

    def judge(self, *, loss: float, grad_norm: float) -> BadStep | None:
        """Judge a step before its update. None: it is not bad, or bad steps of its kind are only recorded.

        A loss is a spike by the rule of the report (`analysis.faults.anomalies.logged_values`): it exceeds the median
        of the `WINDOW` losses before by `SIGMAS` times their spread (1.4826 times the median absolute deviation), and
        by a tenth of that median. Losses of bad steps are not among them.
        """
        for name, value in (("loss", loss), ("gradient norm", grad_norm)):
            if self._config.not_finite != "record" and not math.isfinite(value):
                why = f"the {name} is {'NaN' if math.isnan(value) else 'infinite'}"
                return BadStep(why=why, rolls_back=self._config.not_finite == "rollback")
        if self._config.spike != "record" and self._is_spike(loss):
            why = f"the loss jumps from {np.median(self._losses):.4g} to {loss:.4g}"
            return BadStep(why=why, rolls_back=self._config.spike == "rollback")
        if math.isfinite(loss):
            self._losses.append(loss)
        return None

    def _is_spike(self, loss: float) -> bool:
        if len(self._losses) < MIN_LOSSES:
            return False
        before = np.array(self._losses)
        median = float(np.median(before))
        spread, rise = SCALE * float(np.median(np.abs(before - median))), loss - median
        return spread > 0 and rise > SIGMAS * spread and rise > MIN_RISE * abs(median)
