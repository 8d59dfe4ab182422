"""A trial of the native recorder: `python -m traincope.doctor.native_trial DIRECTORY` records one process.

It fails if the records are not those of its collectives. A crash shows as a signal.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import traincope
from traincope.errors import TraincopeError
from traincope.events import OPEN, Kind
from traincope.store import read_run

NUM_STEPS = 20


def record(directory: Path) -> None:
    """Record collectives that are waited for in Python and in C++, and a barrier."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # not in __all__
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    tensor, group = torch.ones(4), dist.new_group()
    with traincope.run(directory, agent=False, budget=None) as run:
        for _ in range(NUM_STEPS):
            dist.all_reduce(tensor)
            functional.wait_tensor(functional.all_reduce(tensor, "sum", group))  # type: ignore[no-untyped-call]
            dist.barrier()
            run.step()
    dist.destroy_process_group()


def check(directory: Path) -> None:
    """Raise TraincopeError unless every collective and its wait have a complete record."""
    (rank,) = read_run(directory).ranks
    records = rank.thread("main")
    collectives, stalls = (records[records["kind"] == kind] for kind in (Kind.COLLECTIVE, Kind.STALL))
    ended = (collectives["end_ns"] != OPEN).all() and (stalls["end_ns"] != OPEN).all()
    state = rank.info.probes.get("native")
    if state != "on" or not len(collectives) == len(stalls) == 3 * NUM_STEPS or not ended:
        raise TraincopeError(
            f"the native recorder is {state}; it wrote {len(collectives)} collectives and {len(stalls)} waits of "
            f"{3 * NUM_STEPS}, {'all' if ended else 'not all'} with an end"
        )


if __name__ == "__main__":
    record(Path(sys.argv[1]))
    check(Path(sys.argv[1]))
