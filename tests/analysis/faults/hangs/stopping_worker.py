"""A worker for torchrun whose training stops in step `FAULT_STEP`, on the last rank: `OUT KIND`.

The last rank writes the file `OUT.stopped` right before its fault.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import traincope

FAULT_STEP = 10
STEPS = 40


def main(out: str, kind: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=8 if kind == "timeout" else 900))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    culprit = rank == world_size - 1
    torch.manual_seed(0)
    first, second = (dist.new_group() for _ in range(2))
    model = wrapped(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with traincope.run(out) as run:
        for step in range(STEPS):
            run.step()
            faulty = culprit and step == FAULT_STEP
            if step == FAULT_STEP:
                Path(f"{out}.stopped-{rank}").touch()
            if faulty and kind in ("sleep", "sleep_fsdp", "timeout"):
                time.sleep(3600)  # the line of the fault
            model(torch.ones(4, 16)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if kind == "skip_same" and not faulty:
                dist.all_reduce(torch.ones(4), group=first)
            if kind == "skip_other":
                if not faulty:
                    dist.all_reduce(torch.ones(4), group=first)
                dist.broadcast(torch.ones(8), src=0, group=first)
            if kind == "opposite":
                for group in (second, first) if faulty else (first, second):
                    dist.all_reduce(torch.ones(4), group=group)
    dist.destroy_process_group()
    os._exit(0)


def wrapped(kind: str) -> nn.Module:
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1))
    if kind == "sleep_fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer)
        return fully_shard(model)
    return nn.parallel.DistributedDataParallel(model) if kind in ("sleep", "timeout") else model


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
