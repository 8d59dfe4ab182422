"""Measurements made by hand: every rank and link takes one unit, except those that a test makes slow."""

from collections.abc import Callable, Iterable, Sequence

from traincope.preflight.judging.links import suspects
from traincope.preflight.measurements import Measurements, PairTime, Place, Quantity, Rate, Round
from traincope.preflight.pairing import Pair, Pairing, first_round, second_round

UNIT_SECONDS = 0.01
NUM_BYTES = 1 << 20
Slowness = Callable[[Pair], float]
"""Multiple of the usual time of a pair."""


def jitter(*key: int) -> float:
    """A factor between 1 and 1.1 that is the same in every run of the test."""
    return 1 + (hash(key) % 97) / 970


def places(hosts: Sequence[str]) -> tuple[Place, ...]:
    """One rank per entry."""
    return tuple(
        Place(rank=rank, host=host, local_rank=hosts[:rank].count(host), device="CPU")
        for rank, host in enumerate(hosts)
    )


def with_pairs(
    hosts: Sequence[str],
    slowness: Slowness,
    *,
    first_only: Slowness = lambda _: 1.0,
    neighbours: Iterable[Pair] | None = None,
) -> Measurements:
    """Both rounds of pairing; `first_only` disturbs only the first. `neighbours`: on the mesh, by default a chain."""
    chain = [(rank, rank + 1) for rank in range(len(hosts) - 1)]
    first = first_round(len(hosts), chain if neighbours is None else neighbours)
    measured = Measurements(
        places=places(hosts), pairs=_timed(first, Round.FIRST, lambda pair: slowness(pair) * first_only(pair))
    )
    again = second_round([pair for pairing in first for pair in pairing], suspects(measured), hosts=hosts)
    return Measurements(places=measured.places, pairs=measured.pairs + _timed(again, Round.SECOND, slowness))


def _timed(pairings: Sequence[Pairing], round: Round, slowness: Slowness) -> tuple[PairTime, ...]:
    return tuple(
        PairTime(
            ranks=pair,
            round=round,
            num_bytes=NUM_BYTES,
            seconds=tuple(UNIT_SECONDS * slowness(pair) * jitter(*pair, repeat) for repeat in range(3)),
        )
        for pairing in pairings
        for pair in pairing
    )


def with_rates(first: Sequence[float], second: Sequence[float]) -> Measurements:
    """Matrix products that take these multiples of the unit, rank by rank, in the two rounds."""
    rates = tuple(
        Rate(
            rank=rank,
            quantity=Quantity.PRODUCTS,
            amount=1e9,
            seconds={Round.FIRST: (UNIT_SECONDS * factors[0],) * 3, Round.SECOND: (UNIT_SECONDS * factors[1],) * 3},
        )
        for rank, factors in enumerate(zip(first, second, strict=True))
    )
    return Measurements(places=places(["a"] * len(first)), rates=rates)
