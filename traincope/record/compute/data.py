"""Hook on data waits: the time inside a DataLoader's `next`, with or without workers."""

import functools
from typing import Any

from traincope.events import Phase
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.instrumentation.torch_private import data_loader_iterator
from traincope.record.segments.slots import Slot
from traincope.record.session.recorder import Recorder


class DataLoading:
    """Hook on `torch.utils.data`."""

    name = "data"
    level = 0

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._patches = Patches()

    def install(self, recorder: Recorder) -> None:
        iterator_class = data_loader_iterator()
        original = iterator_class.__next__

        number, data_wait, phases = recorder.names.intern("DataLoader"), int(Phase.DATA_WAIT), self._phases

        def begin() -> Slot:
            recorder.before_work()
            return phases.begin(data_wait, number)

        begin_wait, finish = guard(begin, every=SAMPLING_INTERVAL), guard(phases.end, every=SAMPLING_INTERVAL)

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            slot = begin_wait() if recorder.active else None
            try:
                return original(iterator)
            finally:
                if slot is not None:
                    finish(slot)

        self._patches.replace(iterator_class, "__next__", __next__)

    def remove(self) -> None:
        self._patches.restore()
