"""Links as slow as one says: what a group's collectives bring arrives so much later, on all its ranks.

Ours stand in gloo's place, below everything that watches collectives: the dispatcher's CPU kernels. They hand the
call to gloo, and a work to the caller that is done only some time after gloo's is.
"""

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch.distributed import ProcessGroup
from torch.library import Library

Begin = Callable[..., Any]
"""Of a backend and the operator's arguments: gloo's own work."""

OPERATORS: Mapping[str, tuple[str, int, Begin]] = {
    "all_reduce": ("allreduce_", 1, lambda gloo, tensors, *_: gloo.allreduce(tensors)),
    "all_gather": ("_allgather_base_", 2, lambda gloo, output, shard, *_: gloo._allgather_base(output, shard)),
    "reduce_scatter": (
        "_reduce_scatter_base_",
        2,
        lambda gloo, part, sums, *_: gloo._reduce_scatter_base(part, sums),
    ),
    "recv": ("recv_", 1, lambda gloo, tensors, _, source, tag: gloo.recv(tensors, source, tag)),
}
"""Operation -> its operator in c10d, where that has its group, and how gloo begins it; sums, where it reduces."""


class SlowLinks:
    """While its block runs, (operation, group's name) -> seconds added; others take what gloo takes."""

    def __init__(self, seconds: Mapping[tuple[str, str], float]) -> None:
        self._seconds = seconds

    def __enter__(self) -> Self:
        self._library = Library("c10d", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that gloo's kernels are overridden
            for operation, (operator, _, _) in OPERATORS.items():
                self._library.impl(operator, self._slow(operation), "CPU", allow_override=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._library._destroy()

    def _slow(self, operation: str) -> Callable[..., Any]:
        _, group_at, begin = OPERATORS[operation]

        def kernel(*arguments: Any) -> Any:
            group = ProcessGroup.unbox(arguments[group_at])
            work = begin(group._get_backend(torch.device("cpu")), *arguments)
            seconds = self._seconds.get((operation, group.group_name), 0.0)
            boxed = (later(work, seconds, brings=arguments[0]) if seconds else work).boxed()
            return boxed if operation == "recv" else (arguments[0], boxed)

        return kernel


def later(work: Any, seconds: float, *, brings: Any) -> Any:
    """A work that is done so long after that one; what it brings DDP takes from it."""
    arrived: torch.futures.Future[Any] = torch.futures.Future()

    def arrive() -> None:
        work.wait()
        time.sleep(seconds)
        arrived.set_result(brings)

    threading.Thread(target=arrive, name="slow link", daemon=True).start()
    return torch._C._distributed_c10d._create_work_from_future(arrived)
