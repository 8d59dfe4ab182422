"""All-to-alls in which some ranks send more than others: a mixture of experts of which some are hot."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.timeline import Instances
from traincope.timeline.numbering import Ints, Numbering

Floats = NDArray[np.float64]

ALL_TO_ALL = "all_to_all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven:
    """One axis, over all its groups."""

    ranks: tuple[int, ...]
    """Of each group the one that sends most, of groups nearly as uneven as the worst."""
    ratio: float
    """What such a rank sends over the mean of its group, the largest of them."""
    cost_ns: int
    """(max - mean bytes) / bandwidth: what the longest message takes beyond an even one; summed over ranks' parts."""


def unevenness(instances: Instances, chosen: Ints, *, operation: str) -> Uneven | None:
    """Of the parts `chosen`, all of one axis and operation; None where nobody sends more than others.

    Only of whole instances. A rank's parts in which all send the same (numbers of rows, rows that go out
    before it is decided who gets them) say nothing of it and are left out.
    """
    if operation != ALL_TO_ALL or not len(chosen):
        return None
    local = Numbering.of(instances.number[chosen].astype(np.int64))
    of_part = local.number(instances.number[chosen].astype(np.int64))
    num_bytes, count = instances.parts.num_bytes[chosen], len(local)
    members = np.bincount(of_part, minlength=count)
    total = np.bincount(of_part, weights=num_bytes, minlength=count)
    most = np.zeros(count)
    np.maximum.at(most, of_part, num_bytes)
    size = np.zeros(count, dtype=np.int64)
    size[of_part] = instances.parts.group_size[chosen]
    uneven = (members == size) & (most * members > total)
    if not uneven.any():
        return None
    told = uneven[of_part]
    ranks, ratio = _hottest(instances, chosen[told], fair=(total / members)[of_part[told]])
    transfer_ns = instances.transfer_ns[local.values[uneven]].sum()
    excess = (most * members - total)[uneven].sum()
    return Uneven(ranks=ranks, ratio=ratio, cost_ns=round(excess * transfer_ns / most[uneven].sum()))


def _hottest(instances: Instances, chosen: Ints, *, fair: Floats) -> tuple[tuple[int, ...], float]:
    """`fair` is what each part would send if all its instance's sent the same."""
    rank, channel = instances.parts.rank[chosen], instances.channel[instances.number[chosen]]
    hottest: dict[int, float] = {}
    for group in np.unique(channel).tolist():
        own = channel == group
        ranks, number = np.unique(rank[own], return_inverse=True)
        sent = np.bincount(number, weights=instances.parts.num_bytes[chosen[own]])
        ratios = sent / np.bincount(number, weights=fair[own])
        hottest[int(ranks[ratios.argmax()])] = float(ratios.max())
    largest = max(hottest.values())
    return tuple(sorted(rank for rank, ratio in hottest.items() if 2 * (ratio - 1) >= largest - 1)), largest
