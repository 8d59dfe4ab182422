"""Hooks on what interrupts the computing thread: Python's garbage collector, and TorchDynamo's compilations."""

import gc
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from traincope.events import Kind, Phase
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard, meter
from traincope.record.instrumentation.late_imports import WhenImported
from traincope.record.instrumentation.raised_later import hide_raising, raise_later
from traincope.record.segments.slots import Slot, end, end_abandoned
from traincope.record.session.recorder import Recorder


class _Interruption:
    """One interval at a time, on the thread that begins it."""

    def __init__(self, recorder: Recorder, phase: Phase) -> None:
        self._recorder, self._phase = recorder, phase
        self._name = recorder.names.intern(phase.name.lower())
        self._slot: Slot | None = None
        self._depth = 0
        """Intervals that are open. Only the outermost is recorded."""

    def begin(self) -> None:
        self._depth += 1
        if self._recorder.active and self._depth == 1:
            self._slot = self._recorder.writer().begin(Kind.PHASE, self._phase, self._name)

    def end(self) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._slot is not None and self._depth == 0:
            end(self._slot)
            self._slot = None

    def abandon(self) -> None:
        """Close an interval whose end an exception of the training has prevented."""
        slot, self._slot, self._depth = self._slot, None, 0
        if slot is not None:
            end_abandoned(slot, meter.interrupted_ns)


class GarbageCollection:
    """Hook on `gc.callbacks`. A signal handler of the training may raise there, and Python drops the exception."""

    name = "gc"
    level = 0

    def install(self, recorder: Recorder) -> None:
        self._interruption = _Interruption(recorder, Phase.GC)
        self._callback = guard(self._collected, every=SAMPLING_INTERVAL)
        self._before, self._hook = getattr(sys, "unraisablehook", sys.__unraisablehook__), self._dropped
        hide_raising()
        sys.unraisablehook = self._hook
        gc.callbacks.append(self._callback)

    def remove(self) -> None:
        if getattr(sys, "unraisablehook", None) is self._hook:  # the training may have set its own
            sys.unraisablehook = self._before
        if self._callback in gc.callbacks:  # the training may have cleared them
            gc.callbacks.remove(self._callback)
        self._interruption.abandon()

    def _dropped(self, dropped: "sys.UnraisableHookArgs") -> None:
        error, here = dropped.exc_value, threading.get_ident()
        of_training = dropped.object is self._callback and here == threading.main_thread().ident
        if not (of_training and error is not None and raise_later(error)):
            self._before(dropped)

    def _collected(self, moment: str, _: dict[str, int]) -> None:
        if moment == "start":
            self._interruption.abandon()  # collections do not nest
            self._interruption.begin()
        else:
            self._interruption.end()


class Compilation:
    """Hook on the callbacks of TorchDynamo, from its import on. torch calls them for the outermost compilation."""

    name = "compile"
    level = 0

    def __init__(self) -> None:
        self._late = WhenImported("torch._dynamo.callback", self._register)
        self._recorder: Recorder | None = None
        self._handler: Any = None

    def install(self, recorder: Recorder) -> None:
        interruption = _Interruption(recorder, Phase.COMPILE)
        self._begin, self._end = guard(_ignoring(interruption.begin)), guard(_ignoring(interruption.end))
        self._recorder = recorder
        self._late.watch(recorder.now_and_then, forget=recorder.remove_listener)

    def remove(self) -> None:
        self._late.stop()
        if self._recorder is not None:
            self._recorder.remove_listener(self._stay_registered)
        for callbacks, own in self._registered():
            if own in callbacks:
                callbacks.remove(own)

    def _register(self, module: ModuleType) -> None:
        self._handler = module.callback_handler
        self._stay_registered()
        if self._recorder is not None:
            self._recorder.now_and_then(self._stay_registered)

    def _stay_registered(self) -> None:
        """Register what is not registered: `torch._dynamo.reset()` removes all callbacks."""
        for callbacks, own in self._registered():
            if own not in callbacks:
                callbacks.append(own)

    def _registered(self) -> list[tuple[list[Any], Any]]:
        if self._handler is None:
            return []
        return [(self._handler.start_callbacks, self._begin), (self._handler.end_callbacks, self._end)]


def _ignoring(act: Callable[[], None]) -> Callable[..., None]:
    """Ignore the arguments, which older releases of torch do not pass."""
    return lambda *_: act()
