"""A pipeline of three equal stages, one forward and one backward at a time. It fills and drains in each step."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import mse_loss

STEPS, MICROBATCHES, WIDTH = 40, 6, 192


def stage_module(stage: int) -> nn.Module:
    torch.manual_seed(stage)
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(3)]
    )


def main() -> None:
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    module = stage_module(rank)
    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=mse_loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            data = torch.randn(MICROBATCHES * 32, WIDTH, generator=torch.Generator().manual_seed(step))
            found: list[torch.Tensor] = []
            if rank == 0:
                schedule.step(data)
            elif rank == stages - 1:
                schedule.step(target=data.sin(), losses=found)
            else:
                schedule.step()
            optimizer.step()
            optimizer.zero_grad()
            print(sum(loss.item() for loss in found), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
