"""A rank of the proof that fails in the way that its first argument's file `how.txt` names."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from traincope.cli.launch.worker_exit import exit_now
from traincope.doctor.gpu_proof.launching import leaving_reason
from traincope.errors import TrainingError


def main(folder: Path) -> None:
    how = (folder / "how.txt").read_text()
    try:
        with leaving_reason(folder, rank=int(os.environ["RANK"])):
            if how == "memory":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore")
            if how == "nccl":
                raise dist.DistBackendError("NCCL error: unhandled system error")
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(300)
    except TrainingError as error:
        exit_now(error.exit_code)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
