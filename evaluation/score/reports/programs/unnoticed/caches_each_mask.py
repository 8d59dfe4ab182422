"""A cache without bound keeps the mask of every packing, and no packing comes twice: 1 MiB per step on every rank."""

import os
import random
import time
from functools import cache

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

STEPS, LENGTH, WIDTH, WORDS = 160, 512, 32, 200


@cache
def block_mask(lengths: tuple[int, ...]) -> torch.Tensor:
    """Return the additive mask of packed samples, of shape (LENGTH, LENGTH). No sample sees another one."""
    sample = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    seen = (sample[:, None] == sample[None, :]).tril()
    return torch.zeros(LENGTH, LENGTH).masked_fill_(~seen, float("-inf"))


def pack(seed: int) -> tuple[int, ...]:
    """Return the lengths of samples that fill a row."""
    cuts = sorted(random.Random(seed).sample(range(1, LENGTH), 5))
    return tuple(end - start for start, end in zip([0, *cuts], [*cuts, LENGTH], strict=True))


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.parts, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, lengths: tuple[int, ...]) -> torch.Tensor:
        queries, keys, values = self.parts(self.embedding(tokens)).unsqueeze(0).chunk(3, -1)
        return self.head(scaled_dot_product_attention(queries, keys, values, block_mask(lengths))[0])


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(Packed())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            tokens = torch.randint(0, WORDS, (LENGTH,), generator=torch.Generator().manual_seed(401 * step + rank))
            time.sleep(0.04)
            loss = cross_entropy(model(tokens, pack(world * step + rank)), tokens.roll(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
