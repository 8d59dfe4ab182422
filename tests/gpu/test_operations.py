"""Every NCCL operation that works on one rank, and gloo's with CUDA tensors."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d

import traincope
from tests.distributed.ranks.pool import Pool
from tests.gpu.figures import Figures
from tests.gpu.readers import device_stalls, failed_hooks, only_rank
from traincope.engine.ranks.renamed import gather_into
from traincope.events import OPEN, Kind

LATE_NS = 100_000_000


def scatter_into(target: Tensor, source: Tensor) -> None:
    (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(target, source)


def coalesced(call: Callable[[Tensor, Tensor], object], target: Tensor, source: Tensor) -> None:
    """Both calls become one operator at the end of the block."""
    with distributed_c10d._coalescing_manager():
        call(target[:32], source[:32])
        call(target[32:], source[32:])


CALLS: tuple[tuple[str, str, Callable[[Tensor, Tensor], object]], ...] = (
    ("allreduce_", "all_reduce", lambda target, source: dist.all_reduce(target.copy_(source))),
    (
        "allreduce_ (work)",
        "all_reduce",
        lambda target, source: dist.all_reduce(target.copy_(source), async_op=True).wait(),
    ),
    (
        "allreduce_ (functional)",
        "all_reduce",
        lambda target, source: target.copy_(functional.all_reduce(source, "sum", dist.group.WORLD)),
    ),
    (
        "allreduce_coalesced_",
        "all_reduce",
        lambda target, source: coalesced(lambda into, tensor: dist.all_reduce(into.copy_(tensor)), target, source),
    ),
    ("barrier", "barrier", lambda target, source: (dist.barrier(), target.copy_(source))),
    ("broadcast_", "broadcast", lambda target, source: dist.broadcast(target.copy_(source), src=0)),
    ("reduce_", "reduce", lambda target, source: dist.reduce(target.copy_(source), dst=0)),
    ("allgather_", "all_gather", lambda target, source: dist.all_gather([target], source)),
    ("_allgather_base_", "all_gather", gather_into),
    ("reduce_scatter_", "reduce_scatter", lambda target, source: dist.reduce_scatter(target, [source])),
    ("_reduce_scatter_base_", "reduce_scatter", scatter_into),
    ("gather_", "gather", lambda target, source: dist.gather(source, [target], dst=0)),
    ("scatter_", "scatter", lambda target, source: dist.scatter(target, [source], src=0)),
    ("alltoall_", "all_to_all", lambda target, source: dist.all_to_all([target], [source])),
    ("alltoall_base_", "all_to_all", dist.all_to_all_single),
    (
        "allgather_into_tensor_coalesced_",
        "all_gather",
        lambda target, source: coalesced(gather_into, target, source),
    ),
    (
        "reduce_scatter_tensor_coalesced_",
        "reduce_scatter",
        lambda target, source: coalesced(scatter_into, target, source),
    ),
)
"""Operator, its name in the record, and a call that leaves `target` equal to `source` on one rank.

Excluded: `allgather_coalesced_`, `monitored_barrier_` and `recv_any_source_`, which NCCL lacks, and `send` and `recv`,
which need another rank.
"""


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize(("operator", "name", "call"), CALLS, ids=[operator for operator, _, _ in CALLS])
def test_each_operation_is_recorded_once_and_has_the_right_result(
    tmp_path: Path, operator: str, name: str, call: Callable[[Tensor, Tensor], object]
) -> None:
    """One closed record, with the numbers of a bare call.

    A synchronous call has a null work from torch 2.8 on. It must neither fail in our hook nor be remembered.
    """
    source = torch.arange(64.0, device="cuda")
    target = torch.zeros_like(source)
    with traincope.run(tmp_path / "run", budget=None):
        call(target, source)
        torch.cuda.synchronize()
        time.sleep(0.05)
    rank = only_rank(tmp_path / "run")
    records = rank.thread("main")
    records = records[records["kind"] == Kind.COLLECTIVE]
    assert [rank.name(int(record["name"])) for record in records] == [name], operator
    assert (records["end_ns"] != OPEN).all()
    assert failed_hooks(rank) == {}
    assert torch.equal(target, source)


@pytest.mark.usefixtures("nccl")
def test_more_than_a_hundred_synchronous_collectives_switch_no_hook_off(tmp_path: Path) -> None:
    """A hook is switched off after a hundred errors. A hook that failed on every null work would be."""
    tensor = torch.ones(8, device="cuda")
    with traincope.run(tmp_path / "run", budget=None) as run:
        run.step()  # stalls are measured from the first boundary of steps on
        for _ in range(300):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        time.sleep(0.1)
    rank = only_rank(tmp_path / "run")
    assert failed_hooks(rank) == {}
    assert (rank.thread("main")["kind"] == Kind.COLLECTIVE).sum() == 300
    assert len(device_stalls(rank)) == 300


def wait_for_a_late_rank(directory: str) -> float:
    """Gloo stages CUDA tensors through the host: its wait blocks the host, then the stream.

    The ranks meet right before one is late: the rank that starts the agent takes longer to start the run.
    """
    warnings.simplefilter("default")  # warnings of torch on some machine are not failures of the recorder
    torch.cuda.set_device(0)
    tensor = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(tensor)
    with traincope.run(directory, budget=None) as run:
        run.step()
        dist.barrier()
        if dist.get_rank() == 1:
            time.sleep(LATE_NS / 1e9)
        dist.all_reduce(tensor, async_op=True).wait()
        torch.cuda.synchronize()
        time.sleep(0.1)
    return float(tensor[0].item())


def test_gloo_with_cuda_tensors_stalls_the_stream_of_the_rank_that_waits(tmp_path: Path, figures: Figures) -> None:
    """Two processes on one GPU, one 100 ms late: the other's compute stream stalls for it."""
    pool = Pool(2)
    try:
        sums = pool.run(wait_for_a_late_rank, str(tmp_path / "run"), timeout_seconds=120.0)
    finally:
        pool.stop()
    assert sums == [4.0, 4.0]
    prompt, late = traincope.open_run(tmp_path / "run").run.ranks
    waited, hurried = device_stalls(prompt), device_stalls(late)
    figures.take(
        "gloo with CUDA tensors: stall for a rank 100 ms late",
        measured=f"{waited[0].microseconds / 1e3:.1f} ms; the late rank's own {hurried[0].microseconds / 1e3:.1f} ms",
        held_to=">= 90 ms; < 50 ms",
    )
    assert waited[0].microseconds >= 0.9 * LATE_NS / 1e3
    assert hurried[0].microseconds < 0.5 * LATE_NS / 1e3
