"""Decide which steps update nothing: those with values that are not finite, or with a loss far above the others."""

import math
from collections import deque

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


class BadSteps:
    """Judges one step after the other. All ranks give it the same values, so they decide alike."""

    def __init__(self, config: StabilityConfig) -> None:
        self._config = config
        self._losses: deque[float] = deque(maxlen=WINDOW)
        """Finite losses of the steps that updated the parameters."""

    def judge(self, *, loss: float, grad_norm: float) -> str | None:
        """Return the reason to skip this step's update, or None.

        A loss is a spike by the rule of the report (`analysis.faults.anomalies.logged_values`): it exceeds the median
        of the `WINDOW` losses before by `SIGMAS` times their spread (1.4826 times the median absolute deviation), and
        by a tenth of that median. Losses of skipped steps are not among them.
        """
        for name, value in (("loss", loss), ("gradient norm", grad_norm)):
            if self._config.not_finite == "skip" and not math.isfinite(value):
                return f"the {name} is {'NaN' if math.isnan(value) else 'infinite'}"
        if self._config.spike == "skip" and self._is_spike(loss):
            return f"the loss jumps from {np.median(self._losses):.4g} to {loss:.4g}"
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
