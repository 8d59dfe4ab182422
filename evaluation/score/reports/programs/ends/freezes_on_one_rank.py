"""Rank 2 alone has an earlier adapter on its disk, loads it and freezes the body. DDP then finds two models."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS = 40


def build(adapter: Path) -> nn.Module:
    """A body and a head. With an adapter, the body is taken from it and is not trained."""
    body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    if adapter.exists():
        body.load_state_dict(torch.load(adapter))
        body.requires_grad_(False)
    return nn.Sequential(body, nn.Linear(64, 7))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    adapter = Path(f"local-disk-{rank}", "adapter.pt")
    if rank == 2:
        adapter.parent.mkdir(exist_ok=True)
        earlier = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        torch.save(earlier.state_dict(), adapter)
    dist.barrier()
    model = DistributedDataParallel(build(adapter))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(61 * step + rank)
            inputs = torch.randn(32, 32, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 7, (32,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
