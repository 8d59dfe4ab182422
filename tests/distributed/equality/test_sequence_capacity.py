"""A capacity of sequences that are split over ranks drops the same choices as with whole sequences."""

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks.pool import Pool
from traincope.engine.model.rotary import Positions
from traincope.engine.model.slots import assign
from traincope.engine.parallel.ring_attention import zigzag
from traincope.engine.parallel.sequence_capacity import assign_across_ranks

Kept = list[list[list[bool]]]
"""For each choice (B, S, k): it found a row."""


def kept(chosen: list[list[list[int]]], experts: int, capacity: int, positions: list[Positions]) -> Kept:
    """Kept choices of this rank's tokens."""
    whole, group = torch.tensor(chosen), dist.group.WORLD
    assert group is not None
    local_choices = torch.cat([whole[:, piece.start : piece.stop] for piece in positions[dist.get_rank()]], dim=1)
    slots = assign_across_ranks(local_choices, experts=experts, capacity=capacity, positions=positions, group=group)
    taken = slots.row[slots.row < slots.num_rows]
    assert sorted(taken.tolist()) == list(range(slots.num_rows))
    owners = torch.arange(experts).repeat_interleave(slots.counts)
    assert torch.equal(owners[taken], local_choices.flatten()[slots.row < slots.num_rows])
    rank_kept: Kept = (slots.row < slots.num_rows).view(local_choices.shape).tolist()
    return rank_kept


def test_earlier_tokens_take_rows_first_on_any_rank(two_ranks: Pool) -> None:
    """All four tokens choose expert 0, which has two rows. Rank 0 has the first and the last token.

    Expert 1 has rows for the second choices of tokens 0 and 1.
    """
    chosen = [[[0, 1], [0, 1], [0, 1], [0, 1]]]
    ring = [zigzag(4, rank=rank, ranks=2) for rank in range(2)]
    assert two_ranks.run(kept, chosen, 2, 2, ring) == [[[[True, True], [False, False]]]] * 2
    halves: list[Positions] = [(range(2),), (range(2, 4),)]
    assert two_ranks.run(kept, chosen, 2, 2, halves) == [[[[True, True]] * 2], [[[False, False]] * 2]]


@pytest.mark.parametrize("seed", range(4))
def test_drops_equal_those_of_whole_sequences(two_ranks: Pool, seed: int) -> None:
    torch.manual_seed(seed)
    chosen = torch.rand(3, 16, 5).argsort(dim=2)[:, :, :2]
    positions = [zigzag(16, rank=rank, ranks=2) for rank in range(2)]
    slots = assign(chosen, experts=5, capacity=4)
    whole = (slots.row < slots.num_rows).view(chosen.shape)
    assert not whole.all()
    for rank, rank_kept in enumerate(two_ranks.run(kept, chosen.tolist(), 5, 4, positions)):
        assert rank_kept == torch.cat([whole[:, piece.start : piece.stop] for piece in positions[rank]], dim=1).tolist()
