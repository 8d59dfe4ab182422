"""python -m evaluation.truth.memory.rank CASE TEXT OUT: one rank of a training, with `allocated.c` preloaded.

It writes the median of three steps' peaks into OUT/RANK. gloo frees a copy when its thread gets a core, so on a busy
machine the peak of a single step may contain one more message.
"""

import ctypes
import os
import sys
from pathlib import Path
from statistics import median

import torch

from evaluation.truth.memory.cases import MEASURED, WARM_UP, configured
from traincope.engine.ranks.bootstrap import WorkerEnvironment, join
from traincope.engine.trainer import Trainer


def main(case: str, text: Path, out: Path) -> None:
    config = configured(case, text)
    environment = WorkerEnvironment.read()
    device = join(environment) if config.parallel.world_size > 1 else torch.device("cpu")
    steps = Trainer(config, device=device).steps()
    for _ in range(WARM_UP):
        next(steps)
    counts = ctypes.CDLL(None)
    counts.allocated_peak.restype = ctypes.c_longlong
    peaks = []
    for _ in range(MEASURED):
        counts.allocated_restart()
        next(steps)
        peaks.append(counts.allocated_peak())
    (out / str(environment.rank)).write_text(str(median(peaks)))
    sys.stdout.flush()
    if config.parallel.world_size > 1:
        torch.distributed.barrier()
    os._exit(0)  # gloo's threads may abort an interpreter that ends


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
