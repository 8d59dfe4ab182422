"""Two launches. The second resumes model and data where the first ended."""

import os
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = 24


def examples() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(2560, 64, generator=generator), torch.randint(0, 8, (2560,), generator=generator))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    sampler = DistributedSampler(examples(), seed=3)
    batches = DataLoader(examples(), batch_size=16, sampler=sampler)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    start = 0
    if Path("checkpoint.pt").exists():
        state = torch.load("checkpoint.pt", weights_only=True)
        net.load_state_dict(state["net"])
        start = state["step"]
    model = DistributedDataParallel(net)
    with open(f"{os.environ['LOSS_OUT']}.{start}.{rank}", "w") as losses:
        loader = islice(batches, start, None)
        for _ in range(STEPS):
            inputs, targets = next(loader)
            loss = cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.barrier()
    if rank == 0:
        torch.save({"net": net.state_dict(), "step": start + STEPS}, "checkpoint.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
