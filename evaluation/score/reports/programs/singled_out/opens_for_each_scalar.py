"""Rank 0 writes the norms of all gradients to an event file on remote storage, which is opened anew for each number."""

import os
import struct
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, ROUND_TRIP_SECONDS = 80, 0.002


class EventFile:
    """An event file in a mounted bucket. Each record opens the file, goes to its end, writes and closes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        record = struct.pack("<qd", step, value) + tag.encode()
        with self.path.open("r+b") as file:
            time.sleep(ROUND_TRIP_SECONDS)
            file.seek(0, os.SEEK_END)
            file.write(struct.pack("<q", len(record)) + record)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.down(torch.relu(self.up(self.norm(hidden))))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(80, 128), *(Block(128) for _ in range(6)), nn.Linear(128, 20))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    writer = EventFile(Path("events.out.tfevents")) if rank == 0 else None
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(613 * step + rank)
            inputs = torch.randn(128, 80, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 20, (128,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            if writer is not None:
                for name, parameter in net.named_parameters():
                    writer.add_scalar(f"grad_norm/{name}", float(parameter.grad.norm()), step)
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
