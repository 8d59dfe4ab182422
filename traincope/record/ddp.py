"""DDP waits for its buckets inside C++, where no hook sees it.

Its stall runs from the return of the last bucket's collective to the end of the backward call,
and ends every bucket that was still open.
"""

import functools
from time import monotonic_ns
from typing import Any

from traincope.events import OPEN, Kind
from traincope.record.collectives import Collectives, Issued
from traincope.record.device import Event
from traincope.record.guard import guard
from traincope.record.patching import Patches
from traincope.record.phases import Phases
from traincope.record.recorder import Recorder
from traincope.record.waits import Waits
from traincope.record.writer import end_at


class DistributedDataParallelStall:
    """Hook on DistributedDataParallel's reducer, from outside."""

    name = "ddp"

    def __init__(self, collectives: Collectives, phases: Phases, waits: Waits) -> None:
        self._collectives = collectives
        self._waits = waits
        self._phases = phases
        self._patches = Patches()
        self._buckets: list[Issued] = []
        self._last_mark: Event | None = None
        """On a GPU: the compute stream right after the last bucket was launched."""

    def install(self, recorder: Recorder) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self._recorder = recorder
        original = DistributedDataParallel.forward
        claim = guard(self._claim)

        @functools.wraps(original)
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            if recorder.active:
                claim(module)
            return original(module, *args, **kwargs)

        self._patches.replace(DistributedDataParallel, "forward", forward)
        self._collectives.listen(self._issued)
        self._phases.after_backward(self._backward_ended)

    def remove(self) -> None:
        self._patches.restore()
        self._buckets.clear()

    def _claim(self, module: Any) -> None:
        self._collectives.groups.claim(module.process_group, "dp").reducer = True

    def _issued(self, issued: Issued) -> None:
        if self._phases.in_backward:
            self._buckets.append(issued)
            if issued.device and self._waits.device is not None:
                self._last_mark = self._waits.device.mark()

    def _backward_ended(self) -> None:
        """A bucket some Python comm hook waited for is closed already, and its stall recorded."""
        buckets, self._buckets = self._buckets, []
        waited_for = [bucket for bucket in buckets if _is_open(bucket)]
        if not waited_for:
            return
        now, last = monotonic_ns(), waited_for[-1]
        if self._waits.device is not None:
            self._waits.device.close(self._last_mark, last)
        for bucket in waited_for:
            end_at(bucket.slot, now)
        self._recorder.writer().write(Kind.STALL, last.returned_ns, now, 0, *last.fields)


def _is_open(issued: Issued) -> bool:
    words, index = issued.slot
    return bool(words[index] == OPEN)
