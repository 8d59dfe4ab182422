"""Lifetimes of tensors that were communicated: the recorder holds none beyond the wait.

A tensor that is freed later than without the recorder, or by another thread, changes what the allocator reuses and
returns to the kernel.
"""

import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

import traincope
from tests.distributed.ranks.pool import Pool
from tests.native.library import using

LONG_SECONDS = 20.0
"""Gloo's threads drop their references soon after the wait, but not before it ends."""


def synchronous(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)


def asynchronous(tensor: torch.Tensor) -> None:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()


def of_a_wait_that_raises(tensor: torch.Tensor) -> None:
    """The exception's traceback holds what it passed, so it ends here."""
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    with pytest.raises(TypeError):
        work.wait("not a timeout")  # type: ignore[arg-type]
    work.wait()


def gathered(tensor: torch.Tensor) -> None:
    dist.all_gather([torch.empty_like(tensor) for _ in range(2)], tensor)


def exchanged(tensor: torch.Tensor) -> None:
    peer, received = 1 - dist.get_rank(), torch.empty_like(tensor)
    exchange = [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, received, peer)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()


def by_a_functional_collective(tensor: torch.Tensor) -> None:
    functional.wait_tensor(functional.all_reduce(tensor, "sum", dist.group.WORLD))


COLLECTIVES = (
    synchronous, asynchronous, of_a_wait_that_raises, gathered, exchanged, by_a_functional_collective,
)  # fmt: skip


def is_freed(collective: Callable[[torch.Tensor], None]) -> bool:
    """Return whether a tensor lives no longer than the collective, while no other collective follows."""
    tensor = torch.ones(1 << 18)
    alive = weakref.ref(tensor)
    collective(tensor)
    del tensor
    deadline = time.monotonic() + LONG_SECONDS
    while alive() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    return alive() is None


def freed(directory: str, native: bool) -> dict[str, bool]:
    with using(native=native), traincope.run(directory, budget=None, agent=False):
        return {collective.__name__: is_freed(collective) for collective in COLLECTIVES}


def test_no_communicated_tensor_outlives_its_wait(two_ranks: Pool, tmp_path: Path, native: bool) -> None:
    observed = two_ranks.run(freed, str(tmp_path / "run"), native)
    for rank in observed:
        assert rank == dict.fromkeys((collective.__name__ for collective in COLLECTIVES), True)
