"""After the end of the process group, rank 0 merges adapters and exports the model for some seconds."""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, PARTS = 70, 6


class Adapted(nn.Module):
    """A frozen layer, and an adapter of low rank beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(80, 80).requires_grad_(False)
        self.down, self.up = nn.Linear(80, 8, bias=False), nn.Linear(8, 80, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.base(hidden) + self.up(self.down(hidden))


@torch.no_grad()
def export(net: nn.Sequential) -> None:
    for part in range(PARTS):
        merged = net[0].base.weight + net[0].up.weight @ net[0].down.weight
        torch.save({"weight": merged}, f"part-{part}.pt")
        time.sleep(0.8)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    viewer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) if rank == 0 else None
    torch.manual_seed(0)
    net = nn.Sequential(Adapted(), nn.ReLU(), nn.Linear(80, 5))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(191 * step + rank)
            inputs = torch.randn(32, 80, generator=generator)
            loss = cross_entropy(model(inputs), torch.randint(0, 5, (32,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if viewer is not None:
        export(net)
        viewer.kill()
        viewer.wait()


if __name__ == "__main__":
    main()
