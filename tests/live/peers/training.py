"""DDP training of several hosts: `python -m tests.live.peers.training OUT PAUSED_STEP RESUME`.

Rank 0 pauses in one step until the file RESUME exists. The others then wait for it in all_reduce. Each rank records
$SPANS_PER_SECOND spans per second, on average over each step.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import traincope


def main(out: Path, *, paused_step: int, resume: Path) -> None:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rate, began, num_spans = int(os.environ.get("SPANS_PER_SECOND", "0")), time.monotonic(), 0
    with traincope.run(out) as run:
        for step in range(int(os.environ["STEPS"])):
            while step == paused_step and dist.get_rank() == 0 and not resume.exists():
                time.sleep(0.02)
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.01)
            while num_spans < (time.monotonic() - began) * rate:
                with traincope.span("work"):
                    num_spans += 1
            run.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), paused_step=int(sys.argv[2]), resume=Path(sys.argv[3]))
