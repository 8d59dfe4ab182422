"""Slow links: results of a group's collectives arrive later by a given time, on all its ranks.

These kernels replace gloo's, below everything that observes collectives: the dispatcher's CPU kernels. They pass the
call to gloo, and return a work to the caller that completes some time after gloo's.
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
"""Call of a backend with the operator's arguments; returns gloo's work."""

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
"""Operation -> its operator in c10d, the position of its group, and gloo's call; sums for reductions."""


class SlowLinks:
    """Slow links while its block runs: (operation, group's name) -> added seconds; other collectives are unchanged.

    Seconds may be a function of the bytes of the call's first tensors.
    """

    def __init__(self, seconds: Mapping[tuple[str, str], float | Callable[[int], float]]) -> None:
        self._seconds = seconds

    def __enter__(self) -> Self:
        self._library = Library("c10d", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning that gloo's kernels are overridden
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
            if callable(seconds):
                first = arguments[0] if isinstance(arguments[0], list) else [arguments[0]]
                seconds = seconds(sum(tensor.nbytes for tensor in first))
            boxed = (later(work, seconds, brings=arguments[0]) if seconds else work).boxed()
            return boxed if operation == "recv" else (arguments[0], boxed)

        return kernel


def later(work: Any, seconds: float, *, brings: Any) -> Any:
    """A work that completes later than the given one; DDP takes its result."""
    arrived: torch.futures.Future[Any] = torch.futures.Future()

    def arrive() -> None:
        work.wait()
        time.sleep(seconds)
        arrived.set_result(brings)

    threading.Thread(target=arrive, name="slow link", daemon=True).start()
    return torch._C._distributed_c10d._create_work_from_future(arrived)
