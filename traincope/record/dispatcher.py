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

from traincope.record.torch_private import destroy_library, hide_from_compiler, keys_below, redispatcher

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
        from torch.library import Library

        below, proceed = keys_below(KEY), redispatcher(namespace, operator)
        ours = around(proceed, below)
        hide_from_compiler(ours, calls_too=True)
        library = Library(namespace, "IMPL")
        library.impl(operator, ours, KEY, with_keyset=True)
        self._libraries.append(library)

    def remove(self) -> None:
        while self._libraries:
            destroy_library(self._libraries.pop())
