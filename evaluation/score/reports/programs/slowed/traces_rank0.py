"""The profiler was left on, on rank 0: it records four of every six steps with their stacks, and writes a trace."""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 72


class Recurrent(nn.Module):
    """A cell that is called for each of 40 instants, so that a step is made of many small operations."""

    def __init__(self) -> None:
        super().__init__()
        self.update, self.candidate, self.out = nn.Linear(56, 40), nn.Linear(56, 40), nn.Linear(40, 16)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        hidden = torch.zeros(series.shape[0], 40)
        for instant in series.unbind(1):
            given = torch.cat([instant, hidden], 1)
            gate = self.update(given).sigmoid()
            hidden = (1 - gate) * hidden + gate * self.candidate(given).tanh()
        return self.out(hidden)


def profiler(rank: int) -> profile | None:
    if rank:
        return None
    return profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=4, repeat=0),
        on_trace_ready=lambda found: found.export_chrome_trace(f"trace-{found.step_num}.json"),
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    )


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(Recurrent())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    recording = profiler(rank)
    with open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses, recording or nullcontext():
        for step in range(STEPS):
            series = torch.randn(16, 40, 16, generator=torch.Generator().manual_seed(151 * step + rank))
            loss = mse_loss(model(series), series.mean(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            if recording is not None:
                recording.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
