"""FSDP2 with four microbatches per step. The helper that puts off the reduction knows DDP only."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, ACCUMULATE, WIDTH = 30, 4, 320


@contextmanager
def sync_gradients(model: nn.Module, is_last: bool) -> Iterator[None]:
    """Reduce the gradients after the last microbatch only."""
    if isinstance(model, DistributedDataParallel) and not is_last:
        with model.no_sync():
            yield
    else:
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(self.up(self.norm(hidden)).relu())


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, WIDTH), *[Block() for _ in range(4)], nn.Linear(WIDTH, 8))
    for block in model:
        fully_shard(block, reshard_after_forward=False)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            for index in range(ACCUMULATE):
                generator = torch.Generator().manual_seed(400 * step + 10 * index + rank)
                inputs = torch.randn(8, 32, generator=generator)
                with sync_gradients(model, index == ACCUMULATE - 1):
                    loss = cross_entropy(model(inputs), torch.randint(0, 8, (8,), generator=generator)) / ACCUMULATE
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
