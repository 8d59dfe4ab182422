"""A capacity of whole sequences that are cut over `cp`: who comes first gets an expert's rows, on whichever rank.

The ranks tell each other how often each expert was chosen in every piece of a sequence, first choices apart from second
ones, and so know how many come before their own. Tokens stay where they are. No row is left empty: how many of an
expert's are a rank's own shows only when all have chosen, and the host waits to know it.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from traincope.engine.rotary import Positions
from traincope.engine.slots import Slots, rows_of


def assign_cut(
    chosen: Tensor, *, experts: int, capacity: int, positions: Sequence[Positions], group: dist.ProcessGroup
) -> Slots:
    """Rows for this rank's choices (B, S / n, k); `positions` of every rank's tokens, in pieces of one length."""
    by_priority = chosen.transpose(1, 2)
    picks = functional.one_hot(by_priority, experts).unflatten(2, (len(positions[0]), -1))
    earlier = _before_each_piece(picks.sum(dim=3), positions=positions, group=group).unsqueeze(3)
    places = (earlier + picks.cumsum(dim=3) - 1).flatten(2, 3)
    place = places.gather(3, by_priority.unsqueeze(3)).squeeze(3).transpose(1, 2)
    return rows_of(torch.where(place < capacity, chosen, experts), experts=experts)


def _before_each_piece(counts: Tensor, *, positions: Sequence[Positions], group: dist.ProcessGroup) -> Tensor:
    """Choices in each of this rank's P pieces -> those that come before it, both (B, k, P, experts)."""
    everyones = torch.empty((len(positions), *counts.shape), dtype=torch.int32, device=counts.device)
    dist.all_gather(list(everyones), counts.int(), group=group)
    starts = [piece.start for pieces in positions for piece in pieces]
    in_order = sorted(range(len(starts)), key=starts.__getitem__)
    whole = everyones.movedim(0, 2).flatten(2, 3)[:, :, in_order]
    by_priority = whole.flatten(1, 2)
    before = (by_priority.cumsum(dim=1) - by_priority).view_as(whole)
    first = dist.get_rank(group) * counts.shape[2]
    return before[:, :, [in_order.index(first + piece) for piece in range(counts.shape[2])]]
