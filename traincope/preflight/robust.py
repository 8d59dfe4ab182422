"""Robust numbers: outliers by the median absolute deviation, and latency and bandwidth of a sweep of sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

SIGMA_OVER_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
MIN_PEERS = 3
"""Fewest values among which one can be an outlier: of two, either may be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Distance from the usual value from which a value is slow. All three must be exceeded."""

    ratio: float
    """Multiple of the usual value."""
    sigmas: float = 6.0
    """Standard deviations, estimated by the median absolute deviation."""
    seconds: float = 0.0
    """Absolute distance."""

    def exceeded(self, value: float, *, usual: float, deviation: float) -> bool:
        """`deviation`: median absolute deviation of healthy values."""
        distance = value - usual
        return (
            value > self.ratio * usual
            and distance > self.sigmas * SIGMA_OVER_MAD * deviation
            and distance > self.seconds
        )


def median_deviation(values: Sequence[float]) -> float:
    """Median absolute deviation from the median."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


def slow_ranks(seconds: Mapping[int, float], *, limit: Limit) -> dict[int, float]:
    """Rank -> multiple of the median of all ranks, of ranks beyond the limit; empty with fewer than MIN_PEERS."""
    if len(seconds) < MIN_PEERS:
        return {}
    values = list(seconds.values())
    usual, deviation = median(values), median_deviation(values)
    return {
        rank: value / usual
        for rank, value in seconds.items()
        if limit.exceeded(value, usual=usual, deviation=deviation)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """seconds = latency + bytes / bandwidth."""

    latency_seconds: float
    bytes_per_second: float | None
    """None: time does not grow with the bytes."""
    error_ratio: float
    """Largest distance of a measured time from the line, relative to the time."""

    def seconds(self, num_bytes: float) -> float:
        return self.latency_seconds + (num_bytes / self.bytes_per_second if self.bytes_per_second else 0.0)


def fit(points: Mapping[float, float]) -> Fit | None:
    """Fit bytes -> seconds by least squares of the relative errors, with no negative term; None below two sizes.

    Relative errors give the small messages, which show the latency, the same weight as the large ones.
    """
    if len(points) < 2 or min(points.values()) <= 0:
        return None
    num_bytes, seconds = np.array(list(points), dtype=float), np.array(list(points.values()))
    columns = np.stack([1 / seconds, num_bytes / seconds], axis=1)
    candidates = []
    for kept in ([0, 1], [1], [0]):
        solution = np.zeros(2)
        # Columns of equal length, because a latency and the time of one byte differ by many orders of magnitude.
        lengths = np.linalg.norm(columns[:, kept], axis=0)
        solution[kept] = np.linalg.lstsq(columns[:, kept] / lengths, np.ones(len(seconds)), rcond=None)[0] / lengths
        if (solution >= 0).all():
            candidates.append((float(np.square(columns @ solution - 1).sum()), solution))
    _, (latency, per_byte) = min(candidates, key=lambda candidate: candidate[0])
    errors = np.abs(latency + per_byte * num_bytes - seconds) / seconds
    return Fit(
        latency_seconds=float(latency),
        bytes_per_second=float(1 / per_byte) if per_byte > 0 else None,
        error_ratio=float(errors.max()),
    )
