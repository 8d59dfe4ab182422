"""Standing in front of a dispatcher operator without replacing anybody's kernel.

Our kernel goes to the `BackendSelect` key, which every call passes after autograd and before the
backend's own kernel, whatever the device; from there the call is redispatched below it. Taking
the backend's kernel out (`get_kernel`) and calling it from ours was tried and deadlocks: its
`call_boxed` keeps the GIL, which gloo's threads need to free a finished work's tensors.
`redispatch_boxed` releases it. Undoing is dropping our registration; the operator's dispatch table
is then what it was, also where somebody has replaced a backend's kernel meanwhile.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from traincope.record.guard import trial_ns
from traincope.record.torch_private import (
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
"""The arguments that a collective has, as far as they cost."""

NO_FILE = " /dev/null:"

Kernel = Callable[..., Any]
"""Called with dispatch keys, then the operator's arguments by position."""


class Interposed:
    """The operators one hook stands in front of."""

    def __init__(self) -> None:
        self._destroyers: list[Callable[[], None]] = []
        self.operators: list[str] = []
        """By their full names."""

    def put(self, namespace: str, operator: str, around: Callable[[Kernel, Any], Kernel]) -> None:
        """Let `around(proceed, below)` answer every call.

        It passes on by `proceed(keys & below, *arguments)`: one Python frame less than hiding that.
        Raises AttributeError where this torch has no such operator, RuntimeError where somebody else
        stands there already: their kernel would not be called any more.
        """
        from torch.library import Library

        below, proceed = keys_below(KEY), redispatcher(namespace, operator)
        ours = around(proceed, below)
        if has_kernel(f"{namespace}::{operator}", KEY):
            raise RuntimeError(f"somebody else's kernel stands in front of {namespace}::{operator} already")
        hide_from_compiler(ours, calls_too=True)
        library = Library(namespace, "IMPL")
        self._destroyers.append(destroyer(library))
        library.impl(operator, ours, KEY, with_keyset=True)
        self.operators.append(f"{namespace}::{operator}")

    @staticmethod
    def hidden(operators: Iterable[str]) -> tuple[str, ...]:
        """Those of `operators` in front of which somebody else has put a kernel since: ours is not called."""
        return tuple(operator for operator in operators if not _is_ours(live_kernel(operator, KEY)))

    def remove(self) -> None:
        """Theirs, put there before or after ours, stays and works."""
        self.operators.clear()
        while self._destroyers:
            self._destroyers.pop()()


def _is_ours(kernel: str) -> bool:
    """An older torch (2.6) names no file of a Python kernel, but lets nobody put another over it either."""
    return __file__ in kernel or NO_FILE in kernel


@functools.cache
def transit_ns() -> int:
    """What the dispatcher's way into a Python kernel and out again costs here, by a trial on an operator of ours.

    Nobody's dispatch mode sees it, or is in it.
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
    tensors = [torch.empty(0, device="cpu")]  # whatever the training's default device is
    call = functools.partial(torch.ops.traincope.nothing.default, tensors, group, None, True, -1)
    bare_ns = trial_ns(call)
    ours = Interposed()
    ours.put("traincope", "nothing", lambda proceed, below: lambda keys, *args: proceed(keys & below, *args))
    try:
        return max(trial_ns(call) - bare_ns, 0)
    finally:
        ours.remove()
        destroyer(library)()
