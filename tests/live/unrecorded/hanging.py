"""A plain training of torchrun, `python hanging.py FILE`: once the file exists, rank 1 sleeps for ever.

Each rank writes torch's flight recorder, as NCCL's watchdog does, two seconds after that.
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined]


def dump() -> None:
    Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{os.environ['RANK']}").write_bytes(_dump_fr_trace())


def main(stop: str) -> None:
    dist.init_process_group("gloo")
    stopping = torch.zeros(1000)
    while True:
        if stopping.any():
            threading.Timer(2.0, dump).start()
            if dist.get_rank() == 1:
                time.sleep(3600)  # the line of the fault
        stopping[:] = float(os.path.exists(stop))
        dist.all_reduce(stopping)
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
