"""Simulated jobs: each rank's own work by term and its waits in every step, with noise of known kinds.

A step lasts as long as its latest rank, and the others wait for it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traincope.analysis.stragglers.persistence import Peers, Work, material_terms
from traincope.arrays import Floats

STEP_NS = 100e6
SHARES = {"forward": 0.3, "backward": 0.6, "optimizer": 0.1}
"""Term -> its share of the work of a step."""
TRANSFER_NS = 5e6

Noise = Callable[[np.random.Generator, tuple[int, int]], Floats]
"""Relative deviations of (ranks, steps)."""


def normal(random: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return 0.02 * random.standard_normal(shape)


def heavy(random: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Mostly small, sometimes half a step and more: its variance is infinite."""
    return 0.01 * np.minimum(np.abs(random.standard_t(1.5, shape)), 60.0)


def dependent(random: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Each step has nine tenths of the deviation of the one before."""
    return 0.03 * correlated(random, shape, correlation=0.9)


def correlated(random: np.random.Generator, shape: tuple[int, int], *, correlation: float) -> Floats:
    """Standard normal numbers, each with this share of the one of the step before."""
    numbers: Floats = random.standard_normal(shape)
    for step in range(1, shape[1]):
        numbers[:, step] = correlation * numbers[:, step - 1] + np.sqrt(1 - correlation**2) * numbers[:, step]
    return numbers


def bursts(random: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Another process slows a rank by up to a third for about 8 steps, and comes back after about 20."""
    busy = np.zeros(shape)
    for rank in range(shape[0]):
        step = 0
        while step < shape[1]:
            step += int(random.geometric(1 / 20))
            length = int(random.geometric(1 / 8))
            busy[rank, step : step + length] = random.uniform(0.05, 0.35)
            step += length
    return busy + 0.01 * random.standard_normal(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Delay of one rank: `ratio` of a step on average, from a step on."""

    rank: int
    ratio: float
    shape: str = "steady"
    term: str = "forward"
    first: int = 0
    varying: Floats | None = None
    """Factor of each step; None: 1."""

    def ns(self, steps: int) -> Floats:
        since = np.arange(steps) - self.first
        usual_ns = self.ratio * STEP_NS
        shapes = {
            "steady": np.full(steps, usual_ns),
            "periodic": np.where(since % 5 == 0, 5 * usual_ns, 0.0),
            "growing": 2 * usual_ns * since / max(steps - self.first, 1),
        }
        return np.where(since >= 0, shapes[self.shape], 0.0) * (1.0 if self.varying is None else self.varying)


def job(
    random: np.random.Generator,
    *,
    ranks: int,
    steps: int,
    noise: Noise,
    delays: tuple[Delay, ...] = (),
    slow_link_ns: float = 0.0,
) -> Peers:
    """Draw a job. With a slow link, the last rank is later after its work, and that is none of its work."""
    work: dict[str, Floats] = {
        term: share * STEP_NS * np.maximum(1 + noise(random, (ranks, steps)), 0.1) for term, share in SHARES.items()
    }
    for delay in delays:
        work[delay.term] = work.get(delay.term, np.zeros((ranks, steps)))
        work[delay.term][delay.rank] += delay.ns(steps)
    own_ns = np.sum(list(work.values()), axis=0)
    arrived_ns = own_ns.copy()
    arrived_ns[-1] += slow_link_ns
    return peers(work, waits_ns=arrived_ns.max(axis=0) - arrived_ns, wall_ns=arrived_ns.max(axis=0) + TRANSFER_NS)


def peers(work: Work, *, waits_ns: Floats, wall_ns: Floats) -> Peers:
    return Peers(work=material_terms(work, wall_ns), waits_ns=waits_ns, wall_ns=wall_ns, num_tests=len(waits_ns))
