"""Interval of checkpoints, from the cost of a checkpoint and the rate of failures."""

import math
from dataclasses import dataclass

from traincope.errors import UsageError

RANK_MTBF_SECONDS = 54 * 86_400 * 16_384 / 419
"""Llama 3 (arXiv 2407.21783, section 3.3.4): 419 unexpected interruptions in 54 days on 16,384 GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failures and checkpoint costs of a job, in seconds. Raises UsageError for impossible values."""

    mtbf_seconds: float
    """Mean time between failures of the whole job."""
    save_seconds: float
    """Time that training stops for one checkpoint."""
    restart_seconds: float = 0.0
    """Time from a failure until training continues from the last checkpoint."""

    def __post_init__(self) -> None:
        for name in ("mtbf_seconds", "save_seconds"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise UsageError(f"{name} is {value:g}; it must be {'finite' if value > 0 else 'greater than 0'}")
        if not 0 <= self.restart_seconds < math.inf:
            how = "finite" if self.restart_seconds > 0 else "at least 0"
            raise UsageError(f"restart_seconds is {self.restart_seconds:g}; it must be {how}")


def job_mtbf(*, part_mtbf_seconds: float, parts: int) -> float:
    """Mean time between failures of a job that fails with any of its parts.

    Parts fail independently at constant rates.
    """
    return part_mtbf_seconds / parts


def young_seconds(failures: Failures) -> float:
    """Checkpoint interval to first order, sqrt(2 C M), in seconds of training.

    Young 1974, CACM 17(9), p. 530.
    """
    return math.sqrt(2 * failures.save_seconds * failures.mtbf_seconds)


def daly_seconds(failures: Failures) -> float:
    """Higher-order estimate of the checkpoint interval, in seconds of training.

    Daly 2006, FGCS 22(3), p. 303, perturbation solution of third order: sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) /
    9) - C if C < 2 M, otherwise M.
    """
    save, mtbf = failures.save_seconds, failures.mtbf_seconds
    if save >= 2 * mtbf:
        return mtbf
    part = save / (2 * mtbf)
    return young_seconds(failures) * (1 + math.sqrt(part) / 3 + part / 9) - save


def useful_ratio(failures: Failures, interval_seconds: float) -> float:
    """Share of all time that is lasting training, with a checkpoint after each `interval_seconds` of it.

    Daly 2006, complete cost function with Poisson failures: interval / (M e^(R / M) (e^((interval + C) / M) - 1)).
    Raises UsageError unless the interval is positive and finite.
    """
    if not 0 < interval_seconds < math.inf:
        how = "finite" if interval_seconds > 0 else "greater than 0"
        raise UsageError(f"interval_seconds is {interval_seconds:g}; it must be {how}")
    mtbf = failures.mtbf_seconds
    exponent = (interval_seconds + failures.save_seconds) / mtbf
    if exponent + failures.restart_seconds / mtbf > 700:
        return 0.0
    return interval_seconds / (mtbf * math.exp(failures.restart_seconds / mtbf) * math.expm1(exponent))
