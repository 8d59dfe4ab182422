"""A training on DDP under torchrun, with a data worker, an own collective, messages and a checkpoint: every fault finds
its place in it.

`python victim.py STEPS DIRECTORY`.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def write(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(steps: int, directory: Path) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    rank = dist.get_rank()
    for step, batch in enumerate(DataLoader(torch.randn(4 * steps, 16), batch_size=4, num_workers=1)):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(torch.tensor([loss.item(), 1.0]))
        message = torch.tensor([float(step)])
        dist.send(message, 1) if rank == 0 else dist.recv(message, 0)
        write(f"rank {rank} step {step} loss {loss.item():.6f}")
    torch.save(model.state_dict(), directory / f"model-{rank}.pt")
    write(f"rank {rank} values {model.module[0].weight.detach().reshape(-1)[0].item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
