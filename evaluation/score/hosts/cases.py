"""Drawn cases: which fault, which host, which rank, how far the clocks are apart, and which link is slow."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

RANK_FAULTS = ("late", "sleep", "skip", "kill")
"""Faults of a rank: the same on one host."""
HOST_FAULTS = ("lost", "cut")
"""Faults of a host. `lost`: it loses its power and its network. `cut`: its link is down for some seconds."""
FAULTS = (*RANK_FAULTS, *HOST_FAULTS)
SHAPES = ((2, 2), (3, 1))
"""(Hosts, ranks per host)."""
MAX_CLOCK_SECONDS = 100_000
MAX_WALL_SECONDS = 2.0
"""Largest lead of a host's wall clock. Two hosts differ by less than what the analysis of lost hosts allows."""
CUT_SECONDS = (2.0, 8.0)
MBIT_PER_SECOND = 100.0
"""A slow link. Gloo sends less than a third of it per second of steps of 50 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    fault: str
    hosts: int
    ranks: int
    """Per host."""
    host: int
    """Place of the host at fault."""
    local_rank: int
    clock_seconds: tuple[int, ...]
    """Lead of each host's monotonic clock."""
    wall_seconds: tuple[float, ...]
    """Lead of each host's wall clock."""
    slow_host: int
    cut_seconds: float

    def on_one_host(self) -> "Case":
        """The same fault of the same rank."""
        return replace(
            self,
            hosts=1,
            ranks=self.hosts * self.ranks,
            host=0,
            local_rank=self.rank,
            clock_seconds=self.clock_seconds[:1],
            wall_seconds=self.wall_seconds[:1],
            slow_host=0,
        )

    @property
    def names(self) -> str:
        return "abc"[: self.hosts]

    @property
    def rank(self) -> int:
        """The rank at fault."""
        return self.host * self.ranks + self.local_rank

    @property
    def ranks_of_host(self) -> list[int]:
        return list(range(self.host * self.ranks, (self.host + 1) * self.ranks))

    def __str__(self) -> str:
        what = f"rank {self.rank}" if self.fault in RANK_FAULTS else f"host {self.names[self.host]}"
        cut = f" for {self.cut_seconds:.1f} s" if self.fault == "cut" else ""
        walls = ", ".join(f"{seconds:+.1f}" for seconds in self.wall_seconds)
        return (
            f"{self.fault} {what}{cut}; {self.hosts} hosts of {self.ranks}, clocks {self.clock_seconds} s, walls "
            f"{walls} s, slow link of {self.names[self.slow_host]}"
        )


def drawn(rng: random.Random, *, count: int, faults: tuple[str, ...]) -> Iterator[Case]:
    """Cases with each fault equally often."""
    for number in range(count):
        hosts, ranks = rng.choice(SHAPES)
        yield Case(
            fault=faults[number % len(faults)],
            hosts=hosts,
            ranks=ranks,
            host=rng.randrange(hosts),
            local_rank=rng.randrange(ranks),
            clock_seconds=tuple(rng.randrange(MAX_CLOCK_SECONDS) for _ in range(hosts)),
            wall_seconds=tuple(rng.uniform(0, MAX_WALL_SECONDS) for _ in range(hosts)),
            slow_host=rng.randrange(hosts),
            cut_seconds=rng.uniform(*CUT_SECONDS),
        )
