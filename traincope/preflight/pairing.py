"""Pairings: ranks that exchange messages at the same time, each with at most one partner.

The first round covers every pair of a small job, and the neighbours on every mesh axis of a large one. The second
round pairs the ranks of slow pairs with each other again, and with partners over the same kind of links, within a host
or between hosts, whose own messages were not slow. A slow
link is slow only with this one partner, a slow rank with all of them.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

Pair = tuple[int, int]
Pairing = tuple[Pair, ...]
"""Pairs that exchange messages at the same time."""

ALL_PAIRS_RANKS = 12
"""Largest job whose ranks are all paired with each other, in 11 pairings."""
PARTNERS = 3
"""Partners of a suspect in the second round, besides those with whom it was slow."""


def pair(a: int, b: int) -> Pair:
    return min(a, b), max(a, b)


def first_round(ranks: int, neighbours: Iterable[Pair]) -> tuple[Pairing, ...]:
    """Pairings that contain each pair once, or in a large job each pair of `neighbours`."""
    if ranks <= ALL_PAIRS_RANKS:
        return all_pairs(ranks)
    return pairings(neighbours)


def all_pairs(ranks: int) -> tuple[Pairing, ...]:
    """Pairings that contain each pair once: one rank stays, the others go round a table (the circle method)."""
    seats = ranks + ranks % 2
    result = []
    for turn in range(seats - 1):
        order = [0, *(1 + (place + turn) % (seats - 1) for place in range(seats - 1))]
        opposite = (pair(order[at], order[-1 - at]) for at in range(seats // 2))
        result.append(tuple(sorted(each for each in opposite if each[1] < ranks)))
    return tuple(each for each in result if each)


def pairings(pairs: Iterable[Pair]) -> tuple[Pairing, ...]:
    """Each pair in the first pairing in which both of its ranks are free."""
    result: list[list[Pair]] = []
    busy: list[set[int]] = []
    for a, b in sorted({pair(*each) for each in pairs}):
        number = next((number for number, ranks in enumerate(busy) if a not in ranks and b not in ranks), len(busy))
        if number == len(busy):
            result.append([])
            busy.append(set())
        result[number].append((a, b))
        busy[number] |= {a, b}
    return tuple(map(tuple, result))


def second_round(
    measured: Sequence[Pair], suspects: Sequence[Pair], *, hosts: Sequence[Hashable]
) -> tuple[Pairing, ...]:
    """Pairings of the suspected pairs, and of their ranks with other partners; none without a suspect.

    `measured`: pairs of the first round; `hosts`: the host of each rank. Partners are on the rank's own host if the
    suspected pair is, and otherwise on other hosts, because only such pairs use the same links. A partner is best not
    suspected itself. In a large job a suspect had few partners, so any other rank may be one.
    """
    if not suspects:
        return ()
    doubts = Counter(rank for each in suspects for rank in each)
    ranks = sorted({rank for each in measured for rank in each})
    chosen = {pair(*each) for each in suspects}
    for rank, across in sorted({(rank, hosts[each[0]] != hosts[each[1]]) for each in suspects for rank in each}):
        others = (
            other
            for other in ranks
            if other != rank and pair(rank, other) not in chosen and (hosts[other] != hosts[rank]) is across
        )
        chosen |= {pair(rank, other) for other in sorted(others, key=lambda other: (doubts[other], other))[:PARTNERS]}
    return pairings(chosen)
