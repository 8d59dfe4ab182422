"""The launch script still exports `TORCH_DISTRIBUTED_DEBUG=DETAIL`, so that each collective is checked first."""

import os
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

STEPS, WORLD, BLOCKS, WIDTH = 60, 3, 5, 96
EXPORTS = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TOKENIZERS_PARALLELISM": "false"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.mix(hidden, hidden, hidden, need_weights=False)[0]
        return hidden + self.feed(hidden)


def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(24, WIDTH), *(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, 40))
    for module in model:
        if isinstance(module, Block):
            fully_shard(module)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(521 * step + rank)
            frames = torch.randn(6, 20, 24, generator=generator)
            labels = torch.randint(0, 40, (120,), generator=generator)
            loss = cross_entropy(model(frames).flatten(0, 1), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


def launch() -> int:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}", __file__]
    return subprocess.call(command, env=os.environ | EXPORTS)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        sys.exit(launch())
