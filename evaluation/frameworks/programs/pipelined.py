"""A pipeline of two stages with four microbatches, one forward and one backward in turn (1F1B)."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

STEPS, MICROBATCHES, BATCH, HIDDEN = 12, 4, 16, 32


def main(directory: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = nn.Sequential(nn.Linear(HIDDEN, 4 * HIDDEN), nn.ReLU(), nn.Linear(4 * HIDDEN, HIDDEN))
    stage = PipelineStage(module, rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    data, losses = torch.Generator().manual_seed(0), []
    for _ in range(STEPS):
        inputs, targets = (torch.randn(BATCH, HIDDEN, generator=data) for _ in range(2))
        optimizer.zero_grad()
        of_step: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=of_step)
        optimizer.step()
        losses += [loss.item() for loss in of_step]
    Path(directory, f"losses-{rank}").write_text("\n".join(map(float.hex, losses)))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(sys.argv[1])
    dist.destroy_process_group()
