"""Interposition before a dispatcher operator, without replacing any other kernel.

Our kernel is registered at the `BackendSelect` key. Every call passes that key after autograd and before the backend's
own kernel, on any device. From there the call is redispatched below the key.

An alternative deadlocks: taking the backend's kernel out (`get_kernel`) and calling it from ours. Its `call_boxed`
keeps the GIL, which gloo's threads need to free a finished work's tensors. `redispatch_boxed` releases it.

Dropping our registration undoes everything. The operator's dispatch table is then as before, also if a backend's kernel
was replaced in the meantime. Registering all kernels again takes 0.2 ms, in one call of C: no thread gets the GIL
meanwhile (`threads.py`).
"""

import functools
from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from traincope.record.instrumentation.guard import trial_ns
from traincope.record.instrumentation.threads import OtherThreads
from traincope.record.instrumentation.torch_private import (
    destroyer,
    has_kernel,
    hide_from_compiler,
    kernel_library,
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
    """The operators of one namespace that the kernels of one hook precede."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._kernels: dict[str, Kernel] = {}
        """Operator by its full name -> our kernel, registered or withdrawn."""
        self._library: Any = None
        """The registration of the kernels. None while they are withdrawn."""
        self._other_threads = OtherThreads()
        self._keep = False
        """True once another thread kept withdrawn kernels from coming back."""
        self.was_withdrawn = False
        """True if calls may have passed without our kernels."""
        self.left_out: tuple[str, ...] = ()
        """Operators whose kernels could not come back, because another library's now precede them."""

    @property
    def operators(self) -> list[str]:
        """Operators before which our kernels are now, by their full names."""
        return [] if self._library is None else [name for name in self._kernels if name not in self.left_out]

    def put(self, operator: str, around: Callable[[Kernel, Any], Kernel]) -> None:
        """Let `around(proceed, below)` answer every call.

        It passes a call on by `proceed(keys & below, *arguments)`, which saves a Python frame. Raises AttributeError if
        this torch has no such operator. Raises RuntimeError if another kernel is already at the key: it would not be
        called any more.
        """
        name = f"{self._namespace}::{operator}"
        ours = around(redispatcher(self._namespace, operator), keys_below(KEY))
        if has_kernel(name, KEY):
            raise RuntimeError(f"another kernel precedes {name} already")
        hide_from_compiler(ours, calls_too=True)
        if self._library is None:
            self._library = kernel_library(self._namespace, __file__)
        self._library.impl(name, KEY, ours, True)
        self._kernels[name] = ours

    def withdraw(self) -> None:
        """Remove our kernels for a while, so that calls cost nothing, unless another thread may be in one."""
        if self._library is None or self._keep or self._other_threads.may_be_in_a_collective():
            return
        self.was_withdrawn = True
        library, self._library = self._library, None
        library.reset()

    def put_back(self) -> bool:
        """Register withdrawn kernels again. Returns whether they are registered.

        They are not if another thread may be in a call. From then on they stay, once they are back. A kernel that
        another library has registered in the meantime is left alone.
        """
        if self._library is not None or not self._kernels:
            return True
        if self._other_threads.may_be_in_a_collective():
            self._keep = True
            return False
        self.left_out = tuple(name for name in self._kernels if has_kernel(name, KEY))
        free = {name: ours for name, ours in self._kernels.items() if name not in self.left_out}
        self._library = kernel_library(self._namespace, __file__)
        deque(map(self._library.impl, free, repeat(KEY), free.values(), repeat(True)), maxlen=0)
        return True

    def hidden(self, operators: Iterable[str]) -> tuple[str, ...]:
        """Return those of `operators` that another kernel hides: ours is registered and not called any more."""
        registered = self.operators
        return tuple(name for name in operators if name in registered and not is_from(__file__, name))

    def remove(self) -> None:
        """Remove our kernels for good. Others, registered before or after ours, stay and work."""
        library, self._library = self._library, None
        self._kernels.clear()
        if library is not None:
            library.reset()


def is_from(file: str, operator: str) -> bool:
    """Return whether the kernel that precedes an operator was registered in this file.

    torch 2.6 names no file for a Python kernel, but it does not allow a second kernel either.
    """
    kernel = live_kernel(operator, KEY)
    return file in kernel or NO_FILE in kernel


@functools.cache
def transit_ns() -> int:
    """Measure the dispatcher's way into a Python kernel and back, in ns, by a trial on an operator of ours.

    No dispatch mode sees the trial or affects it.
    """
    with without_modes():
        return _try_transit_ns()


def _try_transit_ns() -> int:
    import torch
    from torch.distributed import ProcessGroup
    from torch.library import Library

    library = Library("traincope", "FRAGMENT")
    library.define(TRIAL_OPERATOR)
    library.impl("nothing", lambda tensors, *_: tensors, "CPU")
    group = ProcessGroup(0, 1).boxed()  # type: ignore[call-arg]  # torch 2.4 has no other without options
    tensors = [torch.empty(0, device="cpu")]  # on the CPU, whatever the training's default device is
    call = functools.partial(torch.ops.traincope.nothing.default, tensors, group, None, True, -1)
    bare_ns = trial_ns(call)
    ours = Interposed("traincope")
    ours.put("nothing", lambda proceed, below: lambda keys, *args: proceed(keys & below, *args))
    try:
        return max(trial_ns(call) - bare_ns, 0)
    finally:
        ours.remove()
        destroyer(library)()
