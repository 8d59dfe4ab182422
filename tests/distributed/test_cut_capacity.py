"""A capacity of sequences that are cut over ranks drops what it drops of whole ones."""

import pytest
import torch
import torch.distributed as dist

from tests.distributed.pool import Pool
from traincope.engine.cut_capacity import assign_cut
from traincope.engine.ring_attention import zigzag
from traincope.engine.rotary import Positions
from traincope.engine.slots import assign

Kept = list[list[list[bool]]]
"""Whether a choice (B, S, k) has found a row."""


def kept(chosen: list[list[list[int]]], experts: int, capacity: int, positions: list[Positions]) -> Kept:
    """Of this rank's tokens."""
    whole, group = torch.tensor(chosen), dist.group.WORLD
    assert group is not None
    mine = torch.cat([whole[:, piece.start : piece.stop] for piece in positions[dist.get_rank()]], dim=1)
    slots = assign_cut(mine, experts=experts, capacity=capacity, positions=positions, group=group)
    taken = slots.row[slots.row < slots.num_rows]
    assert sorted(taken.tolist()) == list(range(slots.num_rows))
    owners = torch.arange(experts).repeat_interleave(slots.counts)
    assert torch.equal(owners[taken], mine.flatten()[slots.row < slots.num_rows])
    found: Kept = (slots.row < slots.num_rows).view(mine.shape).tolist()
    return found


def test_first_come_is_first_served_on_whichever_rank(two_ranks: Pool) -> None:
    """All four tokens want expert 0, which has two rows; rank 0 has the first and the last of them.

    Of the second choices expert 1 has a row for those of tokens 0 and 1.
    """
    chosen = [[[0, 1], [0, 1], [0, 1], [0, 1]]]
    ring = [zigzag(4, rank=rank, ranks=2) for rank in range(2)]
    assert two_ranks.run(kept, chosen, 2, 2, ring) == [[[[True, True], [False, False]]]] * 2
    halves: list[Positions] = [(range(2),), (range(2, 4),)]
    assert two_ranks.run(kept, chosen, 2, 2, halves) == [[[[True, True]] * 2], [[[False, False]] * 2]]


@pytest.mark.parametrize("seed", range(4))
def test_as_of_whole_sequences(two_ranks: Pool, seed: int) -> None:
    torch.manual_seed(seed)
    chosen = torch.rand(3, 16, 5).argsort(dim=2)[:, :, :2]
    positions = [zigzag(16, rank=rank, ranks=2) for rank in range(2)]
    slots = assign(chosen, experts=5, capacity=4)
    whole = (slots.row < slots.num_rows).view(chosen.shape)
    assert not whole.all()
    for rank, found in enumerate(two_ranks.run(kept, chosen.tolist(), 5, 4, positions)):
        assert found == torch.cat([whole[:, piece.start : piece.stop] for piece in positions[rank]], dim=1).tolist()
