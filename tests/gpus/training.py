"""One rank of a training in which the GPU of the last rank spins between forward and backward.

Run by torchrun: `training.py CASE RUN`. The last rank writes how long its GPU spun in each step, by CUDA events, to
`RUN.spins.json`.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import traincope

STEPS, LAYERS, WIDTH, BATCH = 12, 8, 2048, 4096
SPIN_CYCLES = 50_000_000
"""About 30 ms."""
BUCKET_MB = 16
"""A layer has 16 MiB of gradients, so that DDP has several buckets."""


def model_of(case: str) -> nn.Module:
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers).cuda()
    if case == "DDP":
        return DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def main(case: str, run: Path) -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    spins = []
    with traincope.run(run, agent=False) as recording:
        dist.init_process_group("nccl")
        is_last = dist.get_rank() == dist.get_world_size() - 1
        model = model_of(case)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batch = torch.randn(BATCH, WIDTH, device="cuda")
        for _ in range(STEPS):
            loss = model(batch).square().mean()
            if is_last:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                torch.cuda._sleep(SPIN_CYCLES)
                end.record()
                spins.append((begin, end))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
        torch.cuda.synchronize()
    if is_last:
        run.with_suffix(".spins.json").write_text(json.dumps([begin.elapsed_time(end) for begin, end in spins]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
