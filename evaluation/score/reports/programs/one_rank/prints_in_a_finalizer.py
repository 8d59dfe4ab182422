"""The console is captured under a lock. Rank 1 rotates its file in step 26, and the old file prints as it is freed."""

import os
import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, LIMIT = 60, 3_500


class Part:
    """A part of the captured console. When it is freed, it says how much it holds."""

    def __init__(self, console: "Console") -> None:
        self.console, self.lines, self.size = console, list[str](), 0

    def __del__(self) -> None:
        self.console.write(f"a part with {len(self.lines)} lines is complete")


class Console:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.part: Any = Part(self)

    def write(self, line: str) -> None:
        with self.lock:
            if self.part.size > LIMIT:
                self.part = Part(self)
            self.part.lines.append(line)
            self.part.size += len(line)


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(223 * step + rank)
    return torch.randn(32, 40, generator=generator), torch.randint(0, 7, (32,), generator=generator)


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 240), nn.SiLU(), nn.Linear(240, 7)))
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
    console = Console()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, targets = batch(rank, step)
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            console.write(f"step {step:4d}, {len(inputs)} rows")
            if rank == 1:
                console.write(f"warning: {step:4d} " + "an image was smaller than the crop, and was padded. " * 2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
