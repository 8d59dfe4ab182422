"""Hook on collectives of Python objects: each rank pickles its object, sends the bytes, and unpickles what it receives.

The whole call is a phase, named by the function and the line that called it. The bytes are collectives as any other.
"""

import functools
import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from traincope.events import Phase
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.segments.slots import Slot
from traincope.record.session.recorder import Recorder

FUNCTIONS = (
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
)
"""Functions of `torch.distributed`."""
WRAPPERS = ("torch.", "traincope.record.")
"""Modules between a call and the hook."""
CHECKPOINTS = "torch.distributed.checkpoint."
"""Module whose collectives of objects are part of a save or load."""
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class _Depth(threading.local):
    inside = False


class ObjectCollectives:
    """Hook on the functions of `torch.distributed` that send Python objects, outermost calls only."""

    name = "objects"
    level = 0

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._patches = Patches()
        self._depth = _Depth()

    def install(self, recorder: Recorder) -> None:
        import torch.distributed as dist

        if not dist.is_available():
            raise RuntimeError("this torch is built without torch.distributed")
        self._recorder = recorder
        for name in FUNCTIONS:
            for module in (dist.distributed_c10d, dist):
                if hasattr(module, name):
                    self._patches.replace(module, name, self._recorded(getattr(module, name), name))

    def remove(self) -> None:
        self._patches.restore()

    def _recorded(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        recorder, depth = self._recorder, self._depth
        begin, finish = guard(self._begin), guard(self._phases.end)

        @functools.wraps(original)
        def sent(*args: Any, **kwargs: Any) -> Any:
            if depth.inside or not recorder.active:
                return original(*args, **kwargs)
            slot, depth.inside = begin(name, sys._getframe(1)), True
            try:
                return original(*args, **kwargs)
            finally:
                depth.inside = False
                if slot is not None:
                    finish(slot)

        return sent

    def _begin(self, name: str, caller: FrameType) -> Slot | None:
        site = training_site(caller)
        return None if site is None else self._phases.begin(Phase.OBJECTS, self._recorder.names.intern(f"{name}{site}"))


def training_site(frame: FrameType | None) -> str | None:
    """Return ` at file:line (function)` of the innermost frame of the training's own code, or of a library without one.

    None if the call is part of a checkpoint.
    """
    of_library: FrameType | None = None
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if module.startswith(CHECKPOINTS):
            return None
        if not module.startswith(WRAPPERS):
            of_library = of_library or frame
            if not frame.f_code.co_filename.startswith(LIBRARIES):
                of_library = frame
                break
        frame = frame.f_back
    if of_library is None:
        return ""
    code = of_library.f_code
    function = "" if code.co_name == "<module>" else f" ({code.co_name})"
    return f" at {os.path.basename(code.co_filename)}:{of_library.f_lineno}{function}"
