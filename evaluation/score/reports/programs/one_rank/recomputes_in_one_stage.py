"""The first of two equal stages recomputes its activations, because it has to hold those of the most microbatches."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

STEPS, MICROBATCHES, ROWS, WIDTH, LAYERS = 30, 6, 128, 256, 6


class Adapted(nn.Module):
    """A frozen layer, and an adapter of low rank next to it."""

    def __init__(self, recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.base = nn.Sequential(nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH))
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)

    def compute(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.base(hidden) + self.up(self.down(hidden))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.recomputes:
            return checkpoint(self.compute, hidden, use_reentrant=False)
        return self.compute(hidden)


def main() -> None:
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = nn.Sequential(*(Adapted(recomputes=rank == 0) for _ in range(LAYERS)))
    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=mse_loss)
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(251 * step)
            hidden = torch.randn(MICROBATCHES * ROWS, WIDTH, generator=generator)
            found: list[torch.Tensor] = []
            if rank == 0:
                schedule.step(hidden)
            else:
                schedule.step(target=hidden.roll(1, 1), losses=found)
            optimizer.step()
            optimizer.zero_grad()
            print(sum(loss.item() for loss in found), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
