"""The end of a collective is the instant of its completion, whoever waits and whenever."""

import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

import traincope
from tests.distributed.ranks.pool import Pool
from tests.distributed.recorded.test_recorded import make_model
from tests.native.library import needs_library, using
from traincope.events import Kind
from traincope.store import RankRecords, read_run

pytestmark = needs_library

LATE_SECONDS, WAIT_SECONDS = 0.044, 0.2


def of_kind(rank: RankRecords, kind: Kind) -> NDArray[np.void]:
    """Records of the training thread. Their times are those of `time.monotonic_ns`."""
    records = rank.thread("main")
    return records[records["kind"] == kind]


@using(native=True)
def waited_for_late(directory: str) -> tuple[int, int]:
    """Return when this rank joined, and an instant after the completion and long before the wait."""
    with traincope.run(directory, budget=None, agent=False) as run:
        run.step()
        dist.barrier()
        if dist.get_rank() == 1:
            time.sleep(LATE_SECONDS)
        joined_ns = time.monotonic_ns()
        work = dist.all_reduce(torch.ones(4), async_op=True)
        assert work is not None
        while not work.is_completed():
            time.sleep(0.001)
        time.sleep(0.001)
        complete_ns = time.monotonic_ns()
        time.sleep(WAIT_SECONDS)
        work.wait()
    return joined_ns, complete_ns


def test_a_collective_that_is_waited_for_late_ends_when_it_was_complete(two_ranks: Pool, tmp_path: Path) -> None:
    (_, seen_ns), (joined_ns, seen_late_ns) = two_ranks.run(waited_for_late, str(tmp_path / "run"))
    for rank, complete_ns in zip(read_run(tmp_path / "run").ranks, (seen_ns, seen_late_ns), strict=True):
        collective, stall = (of_kind(rank, kind)[-1] for kind in (Kind.COLLECTIVE, Kind.STALL))
        assert joined_ns < collective["end_ns"] < complete_ns < stall["start_ns"]


@using(native=True)
def train_ddp(directory: str) -> int:
    """Train with a bucket per layer. Returns an instant late in the last backward, before its last bucket."""
    instants = []
    model = DistributedDataParallel(make_model(), process_group=dist.new_group(), bucket_cap_mb=0.001)

    def wait(_: torch.Tensor) -> None:
        time.sleep(WAIT_SECONDS)
        instants.append(time.monotonic_ns())

    with traincope.run(directory, budget=None, agent=False) as run:
        for step in range(3):  # DDP forms its buckets in the first
            if step == 2:
                model.module[0].weight.register_hook(wait)
            model(torch.ones(4, 32)).sum().backward()
            run.step()
    return instants[0]


def test_a_bucket_that_only_cpp_waits_for_ends_while_the_backward_goes_on(two_ranks: Pool, tmp_path: Path) -> None:
    late = two_ranks.run(train_ddp, str(tmp_path / "run"))
    for rank, late_ns in zip(read_run(tmp_path / "run").ranks, late, strict=True):
        collectives, stall = of_kind(rank, Kind.COLLECTIVE), of_kind(rank, Kind.STALL)[-1]
        *early, last = collectives[collectives["step"] == 2]
        assert early
        assert all(each["end_ns"] < late_ns for each in early)
        assert late_ns < last["start_ns"] < last["end_ns"] <= stall["end_ns"]


@using(native=True)
def end_before_completion(directory: str) -> None:
    """The run ends while a collective is under way: a thread of rank 1 joins it afterwards."""
    tensor, group = torch.ones(4), dist.new_group()
    with traincope.run(directory, budget=None, agent=False) as run:
        run.step()
        dist.all_reduce(torch.ones(1), group=group)
        work = dist.all_reduce(tensor, group=group, async_op=True) if dist.get_rank() == 0 else None
    dist.barrier()
    if work is None:
        threading.Thread(target=dist.all_reduce, args=(tensor,), kwargs={"group": group}).start()
    else:
        work.wait()
    dist.barrier()


def test_a_collective_that_ends_after_the_run_ends_in_its_record(two_ranks: Pool, tmp_path: Path) -> None:
    two_ranks.run(end_before_completion, str(tmp_path / "run"))
    rank = read_run(tmp_path / "run").ranks[0]
    assert of_kind(rank, Kind.COLLECTIVE)[-1]["end_ns"] > of_kind(rank, Kind.STEP)[-1]["end_ns"]
