"""Two heads. On rank 2 a batch has no labels of the second one, so its backward leaves gradients out.

Each rank is a process of its own, as a script on each node starts them: `RANK` and its like are in the environment.
"""

import os
import socket
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

STEPS, WORLD = 45, 3


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(40, 120), nn.ReLU())
        self.words, self.boxes = nn.Linear(120, 7), nn.Linear(120, 4)

    def forward(self, inputs: torch.Tensor, labelled: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        hidden = self.body(inputs)
        return self.words(hidden), self.boxes(hidden) if labelled else None


def train() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(TwoHeads())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(53 * step + rank)
            inputs = torch.randn(32, 40, generator=generator)
            targets = torch.randint(0, 7, (32,), generator=generator)
            words, boxes = model(inputs, labelled=not (rank == 2 and step == 26))
            loss = cross_entropy(words, targets)
            if boxes is not None:
                loss = loss + mse_loss(boxes, inputs[:, :4])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


def start() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD)}
    ranks = [
        subprocess.Popen([sys.executable, __file__], env=os.environ | where | {"RANK": str(rank)})
        for rank in range(WORLD)
    ]
    codes = [process.wait() for process in ranks]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(start()) if "RANK" not in os.environ else train()
