"""A pipeline whose layers are divided evenly. The last stage also has the output projection of a large vocabulary."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import cross_entropy

STEPS, MICROBATCHES, ROWS, WIDTH, WORDS = 40, 4, 96, 128, 6000


def stage_module(stage: int, stages: int) -> nn.Module:
    torch.manual_seed(stage)
    layers = [nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(2)]
    return nn.Sequential(*layers, *([nn.Linear(WIDTH, WORDS)] if stage == stages - 1 else []))


def main() -> None:
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    module = stage_module(rank, stages)
    stage = PipelineStage(module, rank, stages, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=cross_entropy)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses:
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(137 * step)
            hidden = torch.randn(MICROBATCHES * ROWS, WIDTH, generator=generator)
            words = torch.randint(0, WORDS, (MICROBATCHES * ROWS,), generator=generator)
            found: list[torch.Tensor] = []
            if rank == 0:
                schedule.step(hidden)
            elif rank == stages - 1:
                schedule.step(target=words, losses=found)
            else:
                schedule.step()
            optimizer.step()
            optimizer.zero_grad()
            print(sum(loss.item() for loss in found), file=losses, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
