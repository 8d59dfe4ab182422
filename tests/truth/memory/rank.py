"""python -m tests.truth.memory.rank CASE TEXT OUT: one rank of a training, with `allocated.c` preloaded.

It writes the peak of the third step into OUT/RANK.
"""

import ctypes
import os
import sys
from pathlib import Path

import torch

from tests.truth.memory.cases import configured
from traincope.engine.ranks.bootstrap import WorkerEnvironment, join
from traincope.engine.trainer import Trainer


def main(case: str, text: Path, out: Path) -> None:
    config = configured(case, text)
    environment = WorkerEnvironment.read()
    device = join(environment) if config.parallel.world_size > 1 else torch.device("cpu")
    steps = Trainer(config, device=device).steps()
    for _ in range(2):  # the first creates AdamW's state, and DDP's last buckets
        next(steps)
    counts = ctypes.CDLL(None)
    counts.allocated_peak.restype = ctypes.c_longlong
    counts.allocated_restart()
    next(steps)
    (out / str(environment.rank)).write_text(str(counts.allocated_peak()))
    sys.stdout.flush()
    if config.parallel.world_size > 1:
        torch.distributed.barrier()
    os._exit(0)  # gloo's threads may abort an interpreter that ends


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
