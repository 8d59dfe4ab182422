"""Exceptions of the training's signal handlers that arrive where Python drops what a callback raises.

A handler runs in whichever function of Python comes next, also in a callback of the garbage collector or of ctypes.
"""

import ctypes
from collections import deque

from traincope.record.instrumentation.torch_private import hide_from_compiler

add_pending_call = ctypes.pythonapi["Py_AddPendingCall"]
"""By item: the attribute belongs to the whole process, so its types are not ours to set."""
add_pending_call.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
_is_true = ctypes.cast(ctypes.pythonapi["PyObject_IsTrue"], ctypes.c_void_p)
"""A pending call whose function fails raises in the main thread. This one calls `__bool__`, and fails as it does."""


class _Errors:
    """The exceptions to raise, by their order."""

    def __init__(self) -> None:
        self.waiting: deque[BaseException] = deque()
        self.too_early = False
        """True in `raise_later`, which Python may interrupt for the call that it has just asked for."""

    def __bool__(self) -> bool:
        if self.too_early and not add_pending_call(_is_true, id(self)):
            return False  # the call has not failed
        raise self.waiting.popleft()


_errors = _Errors()


def raise_later(error: BaseException) -> bool:
    """Raise an exception in the main thread, at its next call. Return whether that is possible.

    The caller is a callback. To raise nothing there, it calls nothing more before it returns.
    """
    _errors.waiting.append(error)
    _errors.too_early = True
    possible = not add_pending_call(_is_true, id(_errors))
    if not possible:  # too many calls are pending
        _errors.waiting.remove(error)
    _errors.too_early = False
    return possible


def hide_raising() -> None:
    """Keep torch.compile from tracing what raises: a compiled region may be running."""
    hide_from_compiler(_Errors.__bool__, calls_too=True)
