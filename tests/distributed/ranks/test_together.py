"""Values that the ranks of a group bring together."""

import torch.distributed as dist

from tests.distributed.ranks.pool import Pool
from traincope.engine.ranks.together import Together


def gathered() -> list[int] | None:
    assert dist.group.WORLD is not None
    return Together(dist.group.WORLD).at_first(10 * dist.get_rank())


def test_only_rank_0_receives_values_that_are_gathered_there(four_ranks: Pool) -> None:
    assert four_ranks.run(gathered) == [[0, 10, 20, 30], None, None, None]
