"""Writes and commits checkpoints in a loop, and is killed: `python -m ... DIRECTORY INSTANTS`.

A child claims the folder and writes; its parent kills it at a random instant, and checks what it left. The next child
continues. Each child counts committed steps in shared memory.
"""

import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path

from tests.engine.checkpoint.test_directory import write
from traincope.engine.checkpoint.manifest import check_file, read_manifest
from traincope.engine.checkpoint.places.claim import take
from traincope.engine.checkpoint.places.directory import complete_checkpoints, step_of

MAX_SECONDS = 0.06
KEEP = 2


def main(directory: Path, instants: int) -> None:
    shared = mmap.mmap(-1, 8)
    committed = memoryview(shared).cast("q")
    rng = random.Random(instants)
    for number in range(instants):
        first = int(committed[0])
        child = os.fork()
        if child == 0:
            step = first
            take(directory, after=number, agents=())
            while True:
                step += 1
                write(directory, step=step, keep=KEEP)
                committed[0] = step
        while first == 0 and committed[0] == 0:  # also a busy machine writes one before the first kill
            time.sleep(0.001)
        time.sleep(rng.uniform(0, MAX_SECONDS))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        committed[0] = check(directory, int(committed[0]))


def check(directory: Path, committed: int) -> int:
    """The newest checkpoint is at most one step ahead of the count, and every complete one is whole."""
    checkpoints = complete_checkpoints(directory)
    for checkpoint in checkpoints:
        for name, saved in read_manifest(checkpoint).files.items():
            check_file(checkpoint, name, saved, whole=True)
    newest = step_of(checkpoints[0]) if checkpoints else 0
    assert committed <= newest <= committed + 1, f"{committed} committed, {newest} on the disk"
    assert len(checkpoints) >= min(newest, KEEP), checkpoints
    return newest


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
