"""All ranks profile three steps, two times, as their schedule says, and each writes its traces."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

STEPS = 120


class Traces:
    def __init__(self, rank: int) -> None:
        self.rank, self.written = rank, 0

    def write(self, profiler: profile) -> None:
        self.written += 1
        profiler.export_chrome_trace(str(Path(f"trace-{self.rank}-{self.written}.json").absolute()))


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv1d(32, 32, 3, padding=1), nn.GELU()) for _ in range(6)]
    model = DistributedDataParallel(
        nn.Sequential(nn.Conv1d(2, 32, 3, padding=1), *layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 5))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    traces = Traces(rank)
    windows = schedule(wait=30, warmup=2, active=3, repeat=2)
    with (
        open(f"{os.environ['LOSS_OUT']}.{rank}", "w") as losses,
        profile(activities=[ProfilerActivity.CPU], schedule=windows, on_trace_ready=traces.write) as profiler,
    ):
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(307 * step + rank)
            waves = torch.randn(32, 2, 200, generator=generator)
            loss = cross_entropy(model(waves), torch.randint(0, 5, (32,), generator=generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex(), file=losses, flush=True)
            profiler.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
