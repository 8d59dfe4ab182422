"""Hook on DDP's waits for its collectives, which happen inside C++ where no other hook sees them.

In the backward DDP waits for its buckets at the very end: the stall runs from the return of the last bucket's
collective to the end of the backward call.

Before the forward it broadcasts buffers and, once, the order of its buckets, and waits for each: the stall runs from
the return of the first to the end of that part.

Both end every collective that was still open: the last one at that time, the others at that time or earlier.
"""

import functools
import weakref
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from traincope.events import DDP_BUFFERS, Flag, Kind
from traincope.record.communication.collectives import Collectives
from traincope.record.communication.pending import Issued
from traincope.record.communication.waits import Waits
from traincope.record.compute.phases import Phases
from traincope.record.gpu.device import Event
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.instrumentation.torch_private import ddp_pre_forward
from traincope.record.segments.slots import add_flag, end_at, is_open
from traincope.record.session.recorder import Recorder


class DistributedDataParallelStall:
    """Hook on DistributedDataParallel's reducer, from outside."""

    name = "ddp"
    level = 1

    def __init__(self, collectives: Collectives, phases: Phases, waits: Waits) -> None:
        self._collectives = collectives
        self._waits = waits
        self._phases = phases
        self._patches = Patches()
        self._claimed: weakref.ref[Any] | None = None
        """The group of the latest forward, whose collectives DDP's reducer waits for. None before the first one."""
        self._in_pre_forward = False
        self._pre_forward_began_ns = 0
        self._underway: list[Issued] = []
        """DDP's collectives that only C++ waits for."""
        self._last_mark: Event | None = None
        """On a GPU: an event on the compute stream, right after the last bucket was launched."""

    def install(self, recorder: Recorder) -> None:
        from torch.nn.parallel import DistributedDataParallel

        self._recorder = recorder
        before = ddp_pre_forward()
        pre_forward = self._around_pre_forward(getattr(DistributedDataParallel, before))
        self._patches.replace(DistributedDataParallel, before, pre_forward)
        self._collectives.listen(self._issued)
        self._phases.after_backward(self._backward_ended)

    def remove(self) -> None:
        self._patches.restore()
        self._underway.clear()
        self._claimed = None

    def _pre_forward_begins(self, module: Any) -> None:
        self._in_pre_forward, self._pre_forward_began_ns = True, monotonic_ns()
        if self._collectives.native is not None:
            self._collectives.native.before_forward(True)
        group = module.process_group
        if self._claimed is None or self._claimed() is not group:
            self._collectives.claim_for_reducer(group)
            self._claimed = weakref.ref(group)

    def _around_pre_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the begin of DDP's forward.

        Not the forward itself: by its file, torch.compile decides whether it compiles DDP as one frame.
        """
        from torch.compiler import is_compiling

        recorder = self._recorder
        begin = guard(self._pre_forward_begins, every=SAMPLING_INTERVAL)
        finish = guard(self._pre_forward_ended, every=SAMPLING_INTERVAL)

        @functools.wraps(original)
        def pre_forward(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(module, *args, **kwargs)
            if not recorder.detailed:
                return original(module, *args, **kwargs)
            begin(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                finish()

        return pre_forward

    def _issued(self, issued: Issued) -> None:
        if self._in_pre_forward or self._phases.in_backward:
            self._underway.append(issued)
            if issued.device and self._waits.device is not None:
                self._waits.device.give_back(self._last_mark)
                self._last_mark = self._waits.device.mark()

    def _pre_forward_ended(self) -> None:
        was_inside, self._in_pre_forward = self._in_pre_forward, False
        if was_inside and self._ended(until_first=True):
            buffers = self._recorder.names.intern(DDP_BUFFERS)
            self._recorder.writer().write(Kind.SPAN, self._pre_forward_began_ns, monotonic_ns(), name=buffers)

    def _backward_ended(self) -> None:
        """End the open buckets.

        A bucket that a Python comm hook waited for is closed already, and its stall is recorded.
        """
        if self._claimed is not None:
            self._ended(until_first=False)

    def _ended(self, *, until_first: bool) -> bool:
        """Write the stall of the collectives that are under way, from the first or the last one on. Returns whether
        there are any.
        """
        native = self._collectives.native
        if native is not None:
            native.before_forward(False)
            return native.end_reducer(until_first=until_first, unless_waited=not until_first)
        underway, self._underway = self._underway, []
        if underway and (until_first or is_open(underway[-1].slot)):
            self._write_stall(underway[0 if until_first else -1], underway)
        return bool(underway)

    def _write_stall(self, representative: Issued, underway: list[Issued]) -> None:
        now = monotonic_ns()
        for issued in underway:
            if is_open(issued.slot):
                end_at(issued.slot, now)
                if issued is not underway[-1]:
                    add_flag(issued.slot, Flag.DONE_BEFORE_WAIT)
        self._recorder.writer().write(Kind.STALL, representative.returned_ns, now, 0, *representative.fields)
        if self._waits.device is not None:
            until_its_end = representative is underway[-1]
            self._waits.device.close(self._last_mark, representative, until_its_end=until_its_end)
            self._last_mark = None
