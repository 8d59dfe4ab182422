"""The global batch grows by plan: one microbatch per step at first, then two, four and eight, reduced once each."""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

PLAN = {0: 1, 20: 2, 40: 4, 60: 8}
STEPS, WORDS, LENGTH = 80, 200, 32


def microbatch(number: int, rank: int) -> torch.Tensor:
    return torch.randint(0, WORDS, (6, LENGTH), generator=torch.Generator().manual_seed(293 * number + rank))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(80, 4, 160, 0.0, batch_first=True)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(WORDS, 80), encoder, nn.Linear(80, WORDS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    number, microbatches = 0, 1
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            microbatches = PLAN.get(step, microbatches)
            total = 0.0
            for left in reversed(range(microbatches)):
                with model.no_sync() if left else nullcontext():
                    words = microbatch(number, rank)
                    loss = cross_entropy(model(words).flatten(0, 1), words.roll(-1, 1).flatten()) / microbatches
                    loss.backward()
                total += loss.item()
                number += 1
            optimizer.step()
            optimizer.zero_grad()
            print(total.hex(), file=losses, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
