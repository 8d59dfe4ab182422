"""Hook on Python's garbage collector, which stops the training thread."""

import gc

from traincope.events import Kind, Phase
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard
from traincope.record.segments.slots import Slot, end
from traincope.record.session.recorder import Recorder


class GarbageCollection:
    """Hook on `gc.callbacks`."""

    name = "gc"
    level = 0

    def __init__(self) -> None:
        self._slot: Slot | None = None

    def install(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._name = recorder.names.intern("gc")
        self._callback = guard(self._collected, every=SAMPLING_INTERVAL)
        gc.callbacks.append(self._callback)

    def remove(self) -> None:
        gc.callbacks.remove(self._callback)

    def _collected(self, moment: str, _: dict[str, int]) -> None:
        if moment == "start" and self._recorder.active:
            self._slot = self._recorder.writer().begin(Kind.PHASE, Phase.GC, self._name)
        elif self._slot is not None:
            end(self._slot)
            self._slot = None
