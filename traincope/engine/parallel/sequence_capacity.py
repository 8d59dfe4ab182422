"""Expert capacity of whole sequences that are split over `cp`.

Choices take an expert's rows in the order of the sequence, on whichever rank they are. The ranks exchange how often
each expert was chosen in each piece of a sequence, first choices and second choices apart. So each rank knows how many
choices precede its own. Tokens stay where they are. No row is left empty. The number of kept rows of a rank is known
only after all have chosen, and the host waits for it.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from traincope.engine.model.rotary import Positions
from traincope.engine.model.slots import Slots, assign_kept


def assign_across_ranks(
    chosen: Tensor, *, experts: int, capacity: int, positions: Sequence[Positions], group: dist.ProcessGroup
) -> Slots:
    """Assign rows to this rank's choices (B, S / n, k).

    `positions` are those of all ranks' tokens, in pieces of one length.
    """
    by_priority = chosen.transpose(1, 2)
    picks = functional.one_hot(by_priority, experts).unflatten(2, (len(positions[0]), -1))
    earlier = _before_each_piece(picks.sum(dim=3), positions=positions, group=group).unsqueeze(3)
    places = (earlier + picks.cumsum(dim=3) - 1).flatten(2, 3)
    place = places.gather(3, by_priority.unsqueeze(3)).squeeze(3).transpose(1, 2)
    return assign_kept(torch.where(place < capacity, chosen, experts), experts=experts)


def _before_each_piece(counts: Tensor, *, positions: Sequence[Positions], group: dist.ProcessGroup) -> Tensor:
    """Choices in each of this rank's P pieces -> choices that precede each piece, both (B, k, P, experts)."""
    all_counts = torch.empty((len(positions), *counts.shape), dtype=torch.int32, device=counts.device)
    dist.all_gather(list(all_counts), counts.int(), group=group)
    starts = [piece.start for pieces in positions for piece in pieces]
    in_order = sorted(range(len(starts)), key=starts.__getitem__)
    whole = all_counts.movedim(0, 2).flatten(2, 3)[:, :, in_order]
    by_priority = whole.flatten(1, 2)
    before = (by_priority.cumsum(dim=1) - by_priority).view_as(whole)
    first = dist.get_rank(group) * counts.shape[2]
    return before[:, :, [in_order.index(first + piece) for piece in range(counts.shape[2])]]
