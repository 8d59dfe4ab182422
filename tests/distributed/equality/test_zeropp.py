"""ZeRO++'s two exchanges on numbers with known sums, and bounds on the rounding error of a block."""

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from tests.distributed.ranks.pool import Pool
from traincope.engine.sharing.zeropp import Gather, QuantizedReduceScatter

COUNT, BLOCK = 10, 4


def rank_numbers(rank: int, count: int) -> torch.Tensor:
    return torch.linspace(-1.0, 2.0, count) * (rank + 1)


def gathered() -> NDArray[np.float32]:
    group, rank = dist.group.WORLD, dist.get_rank()
    assert group is not None
    output = torch.empty(group.size() * COUNT)
    shard = output[rank * COUNT : (rank + 1) * COUNT]
    shard.copy_(rank_numbers(rank, COUNT))
    Gather(node=None, block=BLOCK)(output_tensor=output, input_tensor=shard, group=group)
    return output.numpy()


def reduced() -> NDArray[np.float32]:
    group = dist.group.WORLD
    assert group is not None
    output = torch.empty(COUNT)
    gradients = rank_numbers(dist.get_rank(), group.size() * COUNT)
    QuantizedReduceScatter(block=BLOCK)(output_tensor=output, input_tensor=gradients, group=group, op=dist.ReduceOp.AVG)
    return output.numpy()


def test_each_rank_gathers_the_same_rounded_parameters(two_ranks: Pool) -> None:
    first, second = two_ranks.run(gathered)
    exact = torch.cat([rank_numbers(rank, COUNT) for rank in range(2)]).numpy()
    assert np.array_equal(first, second)
    assert 0.0 < np.abs(first - exact).max() <= 4.0 / 254


def test_gradients_are_averaged_with_one_rounding_per_rank(two_ranks: Pool) -> None:
    """Ranks have x and 2 x, so the mean is 1.5 x. The largest numbers of a block are 2 and 4."""
    exact = np.array_split(1.5 * rank_numbers(0, 2 * COUNT).numpy(), 2)
    for ours, expected in zip(two_ranks.run(reduced), exact, strict=True):
        assert 0.0 < np.abs(ours - expected).max() <= (2.0 + 4.0) / 2 / 254
