"""Training of two ranks that stays alive after its last step so that tests can inspect it."""

import os
import time
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import traincope

STEPS = 12
LATE_SECONDS = 0.02
"""Delay of rank 1 in every step."""


def train(out: str, stop: str, targets: str, steps: int | None = STEPS) -> None:
    """Train into the run directory `out` until the file `stop` exists. Without `steps` it trains until then.

    Its agent looks continuously.
    """
    quick = {"TRAINCOPE_AGENT": "on", "TRAINCOPE_AGENT_INTERVAL": "0.3", "TRAINCOPE_AGENT_SHARE": "1"}
    served = {
        "TRAINCOPE_METRICS": "127.0.0.1:0",
        "TRAINCOPE_METRICS_PER_RANK": "on",
        "TRAINCOPE_TARGETS": targets,
        "LOCAL_WORLD_SIZE": "2",
    }
    os.environ |= quick | served
    try:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with traincope.run(out, budget=None) as run:
            run.describe(tokens_per_step=96, peak_flops=1e9)
            for _ in count() if steps is None else range(steps):
                time.sleep(LATE_SECONDS * dist.get_rank())
                loss = model(torch.randn(8, 64)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.log(loss=loss)
                run.step()
                if steps is None and _agreed(Path(stop).exists()):
                    break
            while not Path(stop).exists():
                time.sleep(0.05)
    finally:
        for name in quick | served:
            del os.environ[name]


def _agreed(wished: bool) -> bool:
    """True on all ranks after the same step if any rank passes True."""
    any_rank = torch.tensor(float(wished))
    dist.all_reduce(any_rank, op=dist.ReduceOp.MAX)
    return bool(any_rank)
