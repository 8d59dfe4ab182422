"""Standing in front of a dispatcher operator without replacing anybody's kernel.

Our kernel goes to the `BackendSelect` key, which every call passes after autograd and before the
backend's own kernel, whatever the device; from there the call is redispatched below it. Taking
the backend's kernel out (`get_kernel`) and calling it from ours was tried and deadlocks: its
`call_boxed` keeps the GIL, which gloo's threads need to free a finished work's tensors.
`redispatch_boxed` releases it. Undoing is dropping our registration; the operator's dispatch table
is then what it was, also where somebody has replaced a backend's kernel meanwhile.
"""

from collections.abc import Callable
from typing import Any

KEY = "BackendSelect"

Kernel = Callable[..., Any]
"""Called with dispatch keys, then the operator's arguments by position."""


class Interposed:
    """The operators one hook stands in front of."""

    def __init__(self) -> None:
        self._libraries: list[Any] = []

    def put(self, namespace: str, operator: str, around: Callable[[Kernel, Any], Kernel]) -> None:
        """Let `around(proceed, below)` answer every call.

        It passes on by `proceed(keys & below, *arguments)`: one Python frame less than hiding that.
        Raises AttributeError where this torch has no such operator.
        """
        import torch
        from torch.library import Library

        below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
        proceed = getattr(getattr(torch.ops, namespace), operator).default._handle.redispatch_boxed
        library = Library(namespace, "IMPL")
        library.impl(operator, around(proceed, below), KEY, with_keyset=True)
        self._libraries.append(library)

    def remove(self) -> None:
        while self._libraries:
            self._libraries.pop()._destroy()
