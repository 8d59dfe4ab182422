"""After the pretraining, all ranks leave their group and make a new one for the fine-tuning, in the same processes."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

PRETRAINING, FINE_TUNING, WIDTH, CLASSES = 50, 40, 64, 8


def pretrain(trunk: nn.Module, rank: int, losses: list[float]) -> None:
    model = DistributedDataParallel(trunk)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(PRETRAINING):
        inputs = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(359 * step + rank))
        masked = inputs * (torch.arange(WIDTH) % 3 > 0)
        time.sleep(0.08)
        loss = mse_loss(model(masked), inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def fine_tune(trunk: nn.Module, rank: int, losses: list[float]) -> None:
    model = DistributedDataParallel(nn.Sequential(trunk, nn.Linear(WIDTH, CLASSES)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(FINE_TUNING):
        generator = torch.Generator().manual_seed(367 * step + rank)
        inputs, targets = torch.randn(48, WIDTH, generator=generator), torch.arange(48) % CLASSES
        time.sleep(0.12)
        loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(WIDTH, 192), nn.GELU(), nn.Linear(192, WIDTH))
    losses: list[float] = []
    pretrain(trunk, rank, losses)
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group(
        "gloo", init_method=(Path.cwd() / "fine-tuning.store").as_uri(), rank=rank, world_size=world
    )
    fine_tune(trunk, rank, losses)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as file:
        file.write("\n".join(loss.hex() for loss in losses))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
