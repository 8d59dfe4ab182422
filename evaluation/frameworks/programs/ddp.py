"""DDP with a DataLoader and two microbatches per step. It evaluates and saves every six steps."""

import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, MICROBATCHES, BATCH, INPUTS, HIDDEN, OUTPUTS, EVERY = 12, 2, 8, 32, 64, 16, 6


def evaluate(model: nn.Module, batches: DataLoader) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        total = torch.stack([mse_loss(model(inputs), targets) for inputs, targets in batches]).sum()
    dist.all_reduce(total)
    model.train()
    return total


def main(directory: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    count = STEPS * MICROBATCHES * BATCH * size
    data = TensorDataset(torch.randn(count, INPUTS), torch.randn(count, OUTPUTS))
    held_out = TensorDataset(torch.randn(4 * BATCH, INPUTS), torch.randn(4 * BATCH, OUTPUTS))
    batches = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for number, (inputs, targets) in enumerate(batches, start=1):
        last = number % MICROBATCHES == 0
        with nullcontext() if last else model.no_sync():
            loss = mse_loss(model(inputs), targets) / MICROBATCHES
            loss.backward()
        losses.append(loss.item())
        if not last:
            continue
        optimizer.step()
        optimizer.zero_grad()
        if number % (EVERY * MICROBATCHES) == 0:
            losses.append(evaluate(model, DataLoader(held_out, batch_size=BATCH)).item())
            if rank == 0:
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{directory}/{number}.pt"
                )
    Path(directory, f"losses-{rank}").write_text("\n".join(map(float.hex, losses)))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
