"""Two sides of a ratio from one run: blocks of steps that take turns, each over the reference's block beside it.

A row is the median of these ratios over all rounds, slowest rank by step, with its bootstrap 95 % interval.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

RESAMPLES = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some steps of one rank, one after the other, of one kind."""

    kind: str
    seconds: list[float]
    """Of each step that counts."""


AnyBlock = TypeVar("AnyBlock", bound=Block)


def in_turns(kinds: Sequence[str], *, rounds: int, block: Callable[[str, int], AnyBlock]) -> Iterator[AnyBlock]:
    """`block(kind, round)` of every kind in every round, in turns: whoever is second has the warmer caches."""
    for number in range(rounds):
        for kind in kinds[::-1] if number % 2 else kinds:
            yield block(kind, number)


def step_seconds(ranks: Sequence[Sequence[Block]], kind: str) -> np.ndarray:
    """(rounds, steps): of each step the slowest rank's time, for all of them wait for it."""
    blocks = [[block.seconds for block in rank if block.kind == kind] for rank in ranks]
    return np.max(np.array(blocks), axis=0)


def ratios(seconds: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Of each round: median step over median step of the reference; both (rounds, steps)."""
    return np.median(seconds, axis=1) / np.median(reference, axis=1)


def interval(samples: np.ndarray) -> tuple[float, float]:
    """Bootstrap 95 % interval of the median."""
    drawn = np.random.default_rng(0).choice(samples, size=(RESAMPLES, len(samples)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)
