"""All ranks validate after every sixth step, for a time that is known. Each rank measures the share of it."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

STEPS, EVERY, KERNEL_SECONDS = 96, 6, 0.05


class Kernel(nn.Module):
    """A layer that takes a fixed time, as a kernel of a device does."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(KERNEL_SECONDS)
        return inputs


def genomes(seed: int, rows: int) -> TensorDataset:
    return TensorDataset(torch.randn(rows, 32, generator=torch.Generator().manual_seed(seed)))


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    total = sum(mse_loss(model(inputs), inputs).item() for (inputs,) in loader)
    model.train()
    return total / len(loader)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 96), Kernel(), nn.Tanh(), nn.Linear(96, 32)))
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
    train = DataLoader(genomes(rank, 16 * STEPS), batch_size=16)
    held_out = DataLoader(genomes(100 + rank, 16 * 4), batch_size=16)
    validating, began = 0.0, time.monotonic()
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step, (inputs,) in enumerate(train, 1):
            loss = mse_loss(model(inputs), inputs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if step % EVERY == 0:
                since = time.monotonic()
                validate(model, held_out)
                validating += time.monotonic() - since
    if rank == 0:
        Path("gain").write_text(str(validating / (time.monotonic() - began)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
