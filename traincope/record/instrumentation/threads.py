"""Other Python threads of the training, as far as they may be inside a collective.

torch's dispatch table is not thread-safe: a thread that calls an operator while its kernels change may read half of an
entry, and raise or crash. A change is safe while no other thread can be in the operator. The change holds the GIL, so
a thread that waits for the GIL, or for anything else, cannot enter an operator meanwhile.
"""

import gc
import sys
import threading
from types import FrameType

WAITING_MODULES = frozenset({"queue", "selectors", "socket", "ssl", "multiprocessing.connection", "subprocess"})
"""Modules of Python that call nothing but their own C functions."""
WAITING_FUNCTIONS = frozenset(
    {
        ("threading", "wait"),
        ("threading", "_wait_for_tstate_lock"),
        ("concurrent.futures.thread", "_worker"),
    }
)
HARMLESS_OWNERS = (
    "traincope.record.instrumentation.own_threads",
    "torch.utils.data._utils.pin_memory",
    "torch._inductor.compile_worker",
)
"""Modules whose own threads use torch, but issue no collectives."""
KNOWN_AFTER = 3
"""Number of looks at a thread before its absence from torch counts."""


class OtherThreads:
    """Knowledge of the other threads, from looks at their stacks between two steps."""

    def __init__(self) -> None:
        self._num_looks: dict[int, int] = {}
        """Thread -> number of looks that found it outside of torch."""
        self._in_torch: set[int] = set()
        """Threads that were ever seen inside torch. A later thread with the same number counts as seen, too."""

    def may_be_in_a_collective(self) -> bool:
        """Look at every other thread. Returns whether one may be inside a collective, or about to enter one."""
        this_thread = threading.get_ident()
        looks = [self._may_be(ident, frame) for ident, frame in _innermost_frames().items() if ident != this_thread]
        return any(looks)

    def _may_be(self, ident: int, frame: FrameType) -> bool:
        if (_module(frame), frame.f_code.co_name) in WAITING_FUNCTIONS or _module(frame) in WAITING_MODULES:
            return False
        modules = _modules(frame)
        owner = next((module for module in reversed(modules) if module != "threading"), "")
        if owner.startswith(HARMLESS_OWNERS):
            return False
        if any(module.partition(".")[0] == "torch" for module in modules):
            self._in_torch.add(ident)
        self._num_looks[ident] = self._num_looks.get(ident, 0) + 1
        return ident in self._in_torch or self._num_looks[ident] < KNOWN_AFTER


def _innermost_frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread.

    The garbage collector stays off meanwhile: in Python 3.11 the call deadlocks if it starts the collector and that
    frees a `threading.local`.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if was_on:
            gc.enable()


def _modules(innermost: FrameType) -> list[str]:
    """Return the modules of a stack's frames, innermost first."""
    modules = []
    frame: FrameType | None = innermost
    while frame is not None:
        modules.append(_module(frame))
        frame = frame.f_back
    return modules


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
