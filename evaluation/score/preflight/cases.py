"""Trials: which fault is injected where, and the only names that are right."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from traincope.preflight.judging.findings import Kind as Name

RANKS = 4
STEPS = 6
"""Steps of the training, where a stage may be named. The other faults are trials of ranks and links alone."""


class Kind(StrEnum):
    """The injected fault."""

    RANK = "slow rank"
    """Its products take longer."""
    LINK = "slow link"
    """Messages between two hosts take a cable of low bandwidth."""
    NETWORK = "slow network of a host"
    STAGE = "unbalanced stage"
    HEALTHY = "healthy"


NAMES = {
    Kind.RANK: Name.SLOW_PRODUCTS,
    Kind.LINK: Name.SLOW_LINK,
    Kind.NETWORK: Name.SLOW_MESSAGES,
    Kind.STAGE: Name.UNBALANCED_STAGE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One preflight. Rank, stage and host have the same number."""

    kind: Kind
    ranks: tuple[int, ...] = ()
    """The place: a rank, the two ends of a link, or the rank of a stage."""
    factor: float = 1.0
    """Multiple of the time of a product or of a stage's sleep."""
    megabits: int = 0
    """Bandwidth of the slow link or network."""

    @property
    def right_names(self) -> list[tuple[str, tuple[int, ...]]]:
        return [] if self.kind is Kind.HEALTHY else [(NAMES[self.kind], self.ranks)]

    @property
    def message(self) -> dict[str, object]:
        """The faults that the ranks inject into themselves."""
        return {
            "steps": STEPS if self.kind in (Kind.STAGE, Kind.HEALTHY) else 0,
            "slow_ranks": list(self.ranks) if self.kind is Kind.RANK else [],
            "factor": self.factor,
            "stages": {str(rank): self.factor for rank in self.ranks} if self.kind is Kind.STAGE else {},
        }

    def __str__(self) -> str:
        where = f" {'-'.join(map(str, self.ranks))}" if self.ranks else ""
        how = f" at {self.megabits} Mbit/s" if self.megabits else f" x {self.factor:.1f}" if self.ranks else ""
        return f"{self.kind}{where}{how}"


def trials(rng: random.Random, *, count: int, healthy: int) -> Iterator[Trial]:
    """`count` trials of each fault, and healthy ones."""
    for _ in range(count):
        yield Trial(kind=Kind.RANK, ranks=(rng.randrange(RANKS),), factor=rng.uniform(2.0, 4.0))
        yield Trial(kind=Kind.LINK, ranks=rng.choice(list(combinations(range(RANKS), 2))), megabits=_slow(rng))
        yield Trial(kind=Kind.NETWORK, ranks=(rng.randrange(RANKS),), megabits=_slow(rng))
        yield Trial(kind=Kind.STAGE, ranks=(rng.randrange(RANKS),), factor=rng.uniform(2.5, 4.0))
    for _ in range(healthy):
        yield Trial(kind=Kind.HEALTHY)


def _slow(rng: random.Random) -> int:
    return rng.choice([50, 100, 200])
