"""How often to save a checkpoint, from what one costs and how often the job fails."""

import math
from dataclasses import dataclass

from traincope.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """All in seconds; raises UsageError unless they can be."""

    mtbf_seconds: float
    """Mean time between failures of the whole job."""
    save_seconds: float
    """What a checkpoint costs: how long training stands still for it."""
    restart_seconds: float = 0.0
    """From a failure until training goes on from the last checkpoint."""

    def __post_init__(self) -> None:
        for name in ("mtbf_seconds", "save_seconds"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise UsageError(f"{name} = {value:g} must be {'finite' if value > 0 else 'more than 0'}")
        if not 0 <= self.restart_seconds < math.inf:
            how = "finite" if self.restart_seconds > 0 else "at least 0"
            raise UsageError(f"restart_seconds = {self.restart_seconds:g} must be {how}")


def job_mtbf(*, part_mtbf_seconds: float, parts: int) -> float:
    """Of a job that fails with any of its parts, which fail independently at constant rates."""
    return part_mtbf_seconds / parts


def young_seconds(failures: Failures) -> float:
    """Of training between two checkpoints, to first order: sqrt(2 C M). Young 1974, CACM 17(9), p. 530."""
    return math.sqrt(2 * failures.save_seconds * failures.mtbf_seconds)


def daly_seconds(failures: Failures) -> float:
    """The higher-order estimate: Daly 2006, FGCS 22(3), p. 303, its perturbation solution of third order.

    sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C where C < 2 M, else M.
    """
    save, mtbf = failures.save_seconds, failures.mtbf_seconds
    if save >= 2 * mtbf:
        return mtbf
    part = save / (2 * mtbf)
    return young_seconds(failures) * (1 + math.sqrt(part) / 3 + part / 9) - save


def useful_ratio(failures: Failures, interval_seconds: float) -> float:
    """Share of all time that is training which lasts, with a checkpoint after every `interval_seconds` of it.

    Daly 2006, the complete cost function, failures being Poisson:
    interval / (M e^(R / M) (e^((interval + C) / M) - 1)).
    Raises UsageError unless the interval is positive and finite.
    """
    if not 0 < interval_seconds < math.inf:
        how = "finite" if interval_seconds > 0 else "more than 0"
        raise UsageError(f"interval_seconds = {interval_seconds:g} must be {how}")
    mtbf = failures.mtbf_seconds
    exponent = (interval_seconds + failures.save_seconds) / mtbf
    if exponent + failures.restart_seconds / mtbf > 700:
        return 0.0
    return interval_seconds / (mtbf * math.exp(failures.restart_seconds / mtbf) * math.expm1(exponent))
