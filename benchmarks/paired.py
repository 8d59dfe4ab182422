"""Ratios of alternating blocks of steps in one run, each block divided by the reference block next to it.

A row is the median of these ratios over all rounds, of the slowest rank per step, with its bootstrap 95 % interval.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

RESAMPLES = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive steps of one rank, of one kind."""

    kind: str
    seconds: list[float]
    """Duration of each counted step."""


AnyBlock = TypeVar("AnyBlock", bound=Block)


def in_turns(kinds: Sequence[str], *, rounds: int, block: Callable[[str, int], AnyBlock]) -> Iterator[AnyBlock]:
    """`block(kind, round)` of every kind in every round, in changing order, because the second one finds warmer
    caches.
    """
    for number in range(rounds):
        for kind in kinds[::-1] if number % 2 else kinds:
            yield block(kind, number)


def step_seconds(ranks: Sequence[Sequence[Block]], kind: str) -> np.ndarray:
    """(rounds, steps): time of the slowest rank in each step, because all ranks wait for it."""
    blocks = [[block.seconds for block in rank if block.kind == kind] for rank in ranks]
    return np.max(np.array(blocks), axis=0)


def ratios(seconds: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Median step divided by the reference's median step, per round; both (rounds, steps)."""
    return np.median(seconds, axis=1) / np.median(reference, axis=1)


def interval(samples: np.ndarray) -> tuple[float, float]:
    """Bootstrap 95 % interval of the median."""
    drawn = np.random.default_rng(0).choice(samples, size=(RESAMPLES, len(samples)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)
