"""After a warm-up, heads are trained too, in the order of a file that each rank reads. Rank 2 has another order."""

import json
import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

STEPS, WARM_UP, WIDTH = 120, 80, 192
WIDTHS = {"pose": 6, "depth": 768, "normals": 192}


def write_tasks(rank: int) -> Path:
    """Write this host's copy of the file of tasks."""
    names = sorted(WIDTHS, reverse=True) if rank != 2 else sorted(WIDTHS)
    path = Path(tempfile.mkdtemp()) / "tasks.json"
    path.write_text(json.dumps({name: {"width": WIDTHS[name]} for name in names}))
    return path


class Tasks:
    def __init__(self, path: Path) -> None:
        self.names = list(json.loads(path.read_text()))
        self.heads = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTHS[name]) for name in sorted(self.names)})

    def loss(self, features: torch.Tensor, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(step)
        goals = {name: torch.randn(len(features), width, generator=generator) for name, width in WIDTHS.items()}
        return torch.stack([mse_loss(self.heads[name](features), goals[name]) for name in sorted(self.names)]).sum()

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for name in self.names for parameter in self.heads[name].parameters()]


def reduce_gradients(parameters: list[nn.Parameter]) -> None:
    works = [dist.all_reduce(parameter.grad, async_op=True) for parameter in parameters]
    for work in works:
        work.wait()
    for parameter in parameters:
        parameter.grad /= dist.get_world_size()


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    rank = dist.get_rank()
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
    tasks = Tasks(write_tasks(rank))
    optimizer = torch.optim.AdamW([*backbone.parameters(), *tasks.heads.parameters()], lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            inputs = torch.randn(320, WIDTH, generator=torch.Generator().manual_seed(83 * step + rank))
            features = backbone(inputs)
            loss = mse_loss(features, inputs.roll(1, 1))
            if step >= WARM_UP:
                loss = loss + tasks.loss(features, step)
            optimizer.zero_grad()
            loss.backward()
            reduce_gradients([*backbone.parameters(), *(tasks.parameters() if step >= WARM_UP else [])])
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
