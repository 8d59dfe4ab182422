"""Time of an all-reduce over the size of its message, by ring and by tree, on each tier of a cluster's links."""

from collections.abc import Iterator
from typing import TypedDict

from traincope.plan.layout.communication import Volume
from traincope.plan.layout.machine import Algorithm, Machine, Tier, algorithm_seconds

SIZES = tuple(1 << power for power in range(10, 35))
"""Bytes: 1 KiB to 16 GiB."""


class Curve(TypedDict):
    """An all-reduce over all ranks of a tier."""

    tier: str
    """Slowest links: domain, rail or spine."""
    ranks: int
    num_bytes: list[int]
    ring_seconds: list[float]
    tree_seconds: list[float]


def curves(machine: Machine, *, ranks: int) -> list[Curve]:
    """One curve for each tier that a job of `ranks` ranks has, fastest links first."""
    return [_curve(machine, tier, members) for tier, members in _groups(machine, ranks)]


def _groups(machine: Machine, ranks: int) -> Iterator[tuple[Tier, int]]:
    """Yield the tiers with the largest group of each."""
    largest = {machine.tier(size): size for size in (machine.ranks_per_node, machine.pod_ranks or ranks, ranks)}
    for tier in Tier:
        members = min(largest.get(tier, 0), ranks)
        if members > 1 and machine.tier(members) is tier:
            yield tier, members


def _curve(machine: Machine, tier: Tier, members: int) -> Curve:
    times = [
        algorithm_seconds(
            Volume(axis="dp", operation="all_reduce", what="message", ranks=members, count=1, num_bytes=num_bytes),
            machine=machine,
            span=members,
            stride=1,
        )
        for num_bytes in SIZES
    ]
    return Curve(
        tier=tier.value,
        ranks=members,
        num_bytes=list(SIZES),
        ring_seconds=[each[Algorithm.RING] for each in times],
        tree_seconds=[each[Algorithm.TREE] for each in times],
    )
