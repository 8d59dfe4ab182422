"""Rank 0 alone writes histograms of all parameters after every step."""

import json
import os
import tempfile
from typing import IO

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 60


def batch(rank: int, step: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(size, 64, generator=generator), torch.randint(0, 8, (size,), generator=generator)


def write_histograms(model: nn.Module, step: int, board: IO[str]) -> None:
    """Counts of each parameter, as a dashboard stores them."""
    for name, parameter in model.named_parameters():
        values = sorted(parameter.detach().flatten()[:20_000].tolist())
        counts = [sum(1 for value in values[at : at + 500] if value > 0) for at in range(0, len(values), 500)]
        board.write(json.dumps({"name": name, "step": step, "counts": counts}))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    board = tempfile.TemporaryFile("w")  # noqa: SIM115
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs, targets = batch(rank, step)
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if rank == 0:
                write_histograms(model, step, board)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
