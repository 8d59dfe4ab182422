"""Collectives that a rank leaves out, or issues in another way than the others.

Our kernels stand before the `c10d` operators at autograd's key, above every recorder and below every library: `dist.*`,
DDP's C++ reducer, FSDP2 and functional collectives all pass there. A call that is left out returns a work that is done.
"""

from collections.abc import Callable
from typing import Any

KEY = "AutogradCPU"
OPERATORS = (
    "allreduce_",
    "allgather_",
    "_allgather_base_",
    "_reduce_scatter_base_",
    "reduce_scatter_",
    "broadcast_",
    "alltoall_base_",
    "barrier",
    "send",
    "recv_",
)

Proceed = Callable[..., Any]
Change = Callable[[str, Proceed, tuple[Any, ...]], Any]
"""Answers a call: with the operator, a function that issues it with given arguments, and the arguments."""


class Calls:
    """Stands before every collective of this process, for good. `change` answers calls while it is set."""

    def __init__(self) -> None:
        self.change: Change | None = None
        self._library: Any = None

    def watch(self) -> None:
        """Register the kernels."""
        import torch
        from torch.library import Library

        self._library = Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
        for operator in OPERATORS:
            handle = getattr(torch.ops.c10d, operator).default._handle
            self._library.impl(operator, self._kernel(operator, handle.redispatch_boxed, below), KEY, with_keyset=True)

    def _kernel(self, operator: str, redispatch: Proceed, below: Any) -> Proceed:
        def kernel(keys: Any, *arguments: Any) -> Any:
            def proceed(*changed: Any) -> Any:
                return redispatch(keys & below, *changed)

            change = self.change
            return proceed(*arguments) if change is None else change(operator, proceed, arguments)

        return kernel

    def once(self, change: Change) -> None:
        """Let `change` answer the next call only."""

        def first(operator: str, proceed: Proceed, arguments: tuple[Any, ...]) -> Any:
            self.change = None
            return change(operator, proceed, arguments)

        self.change = first


def left_out(operator: str, _proceed: Proceed, arguments: tuple[Any, ...]) -> Any:
    """Issue nothing."""
    import torch
    from torch._C import _distributed_c10d

    future: Any = torch.futures.Future()
    future.set_result(arguments[0])
    work = _distributed_c10d._create_work_from_future(future).boxed()  # type: ignore[attr-defined]
    return work if operator == "barrier" else (arguments[0], work)


def late_with(peers: frozenset[int], delay: Callable[[], object]) -> Change:
    """Return a change that is late with every message to or from these global ranks."""

    def change(operator: str, proceed: Proceed, arguments: tuple[Any, ...]) -> Any:
        if operator in ("send", "recv_") and _global_rank(*arguments[1:3]) in peers:
            delay()
        return proceed(*arguments)

    return change


def _global_rank(group: Any, rank: int) -> int:
    import torch.distributed as dist

    return dist.get_global_rank(dist.ProcessGroup.unbox(group), rank)


def with_tensors(convert: Callable[[Any], Any]) -> Change:
    """Return a change that issues the call with converted tensors."""

    def change(_operator: str, proceed: Proceed, arguments: tuple[Any, ...]) -> Any:
        return proceed(*map(converted, arguments))

    def converted(argument: Any) -> Any:
        import torch

        if isinstance(argument, torch.Tensor):
            return convert(argument)
        return [converted(part) for part in argument] if type(argument) is list else argument

    return change


def in_group(group: Any) -> Change:
    """Return a change that issues the call in another group."""

    def change(_operator: str, proceed: Proceed, arguments: tuple[Any, ...]) -> Any:
        boxed = group.boxed()
        return proceed(*(boxed if _is_group(argument) else argument for argument in arguments))

    return change


def _is_group(argument: Any) -> bool:
    import torch

    return isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type())
