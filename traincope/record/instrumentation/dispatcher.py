"""Interposition before a dispatcher operator, without replacing any other kernel.

Our kernel is registered at the `BackendSelect` key. Every call passes that key after autograd and before the backend's
own kernel, on any device. From there the call is redispatched below the key.

An alternative deadlocks: taking the backend's kernel out (`get_kernel`) and calling it from ours. Its `call_boxed`
keeps the GIL, which gloo's threads need to free a finished work's tensors. `redispatch_boxed` releases it.

Dropping our registration undoes everything. The operator's dispatch table is then as before, also if a backend's kernel
was replaced in the meantime.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from traincope.record.instrumentation.guard import trial_ns
from traincope.record.instrumentation.torch_private import (
    destroyer,
    has_kernel,
    hide_from_compiler,
    keys_below,
    live_kernel,
    redispatcher,
    without_modes,
)

KEY = "BackendSelect"

GROUP_TYPE = "__torch__.torch.classes.c10d.ProcessGroup"
TRIAL_OPERATOR = f"nothing(Tensor[] tensors, {GROUP_TYPE} group, Tensor? indices, bool async, int timeout) -> Tensor[]"
"""The arguments of a collective, as far as they affect the cost."""

NO_FILE = " /dev/null:"

Kernel = Callable[..., Any]
"""A kernel. Its arguments are dispatch keys, and then the operator's arguments by position."""


class Interposed:
    """The operators that the kernels of one hook precede."""

    def __init__(self) -> None:
        self._destroyers: list[Callable[[], None]] = []
        self.operators: list[str] = []
        """Operators by their full names."""

    def put(self, namespace: str, operator: str, around: Callable[[Kernel, Any], Kernel]) -> None:
        """Let `around(proceed, below)` answer every call.

        It passes a call on by `proceed(keys & below, *arguments)`, which saves a Python frame. Raises AttributeError if
        this torch has no such operator. Raises RuntimeError if another kernel is already at the key: it would not be
        called any more.
        """
        from torch.library import Library

        below, proceed = keys_below(KEY), redispatcher(namespace, operator)
        ours = around(proceed, below)
        if has_kernel(f"{namespace}::{operator}", KEY):
            raise RuntimeError(f"another kernel precedes {namespace}::{operator} already")
        hide_from_compiler(ours, calls_too=True)
        library = Library(namespace, "IMPL")
        self._destroyers.append(destroyer(library))
        library.impl(operator, ours, KEY, with_keyset=True)
        self.operators.append(f"{namespace}::{operator}")

    @staticmethod
    def hidden(operators: Iterable[str]) -> tuple[str, ...]:
        """Return those of `operators` that another kernel hides: ours is not called any more."""
        return tuple(operator for operator in operators if not _is_ours(live_kernel(operator, KEY)))

    def remove(self) -> None:
        """Remove our kernels. Others, registered before or after ours, stay and work."""
        self.operators.clear()
        while self._destroyers:
            self._destroyers.pop()()


def _is_ours(kernel: str) -> bool:
    """Return whether the kernel is ours.

    torch 2.6 names no file for a Python kernel, but it does not allow a second kernel either.
    """
    return __file__ in kernel or NO_FILE in kernel


@functools.cache
def transit_ns() -> int:
    """Measure the dispatcher's way into a Python kernel and back, in ns, by a trial on an operator of ours.

    No dispatch mode sees the trial or affects it.
    """
    with without_modes():
        return _try_transit_ns()


def _try_transit_ns() -> int:
    import torch
    from torch.distributed import HashStore, ProcessGroup  # type: ignore[attr-defined]  # public, but not in __all__
    from torch.library import Library

    library = Library("traincope", "FRAGMENT")
    library.define(TRIAL_OPERATOR)
    library.impl("nothing", lambda tensors, *_: tensors, "CPU")
    group = ProcessGroup(HashStore(), 0, 1).boxed()
    tensors = [torch.empty(0, device="cpu")]  # on the CPU, whatever the training's default device is
    call = functools.partial(torch.ops.traincope.nothing.default, tensors, group, None, True, -1)
    bare_ns = trial_ns(call)
    ours = Interposed()
    ours.put("traincope", "nothing", lambda proceed, below: lambda keys, *args: proceed(keys & below, *args))
    try:
        return max(trial_ns(call) - bare_ns, 0)
    finally:
        ours.remove()
        destroyer(library)()
