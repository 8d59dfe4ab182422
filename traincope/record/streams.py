"""Collectives that nobody waits for by their work, because a CUDA stream orders them by itself.

A synchronous NCCL collective (torch 2.8+) runs on the stream that is current, and its work is null:
on the compute stream its own run is the stall. FSDP2 issues its collectives so on streams of its
own, and the compute stream then waits for an event recorded there: that wait is the stall.
`Stream.wait_event`, `wait_stream` and `record_event` all end in `Event.record` and `Event.wait`.
What waits below Python (`torch.Stream`, the device-generic one) is not seen.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from traincope.record.collectives import Collectives
from traincope.record.device import OTHER_DEVICE, DeviceStalls, Event
from traincope.record.guard import SAMPLED, guard
from traincope.record.patching import Patches
from traincope.record.pending import MAX_PENDING, Issued
from traincope.record.recorder import Recorder
from traincope.record.torch_private import raw_stream_reader
from traincope.record.waits import Waits

SYNCHRONOUS = 0
"""Flags of a collective that is neither asynchronous nor point to point."""
WITHOUT_CUDA = "off: nothing to watch: this torch is built without CUDA"


class Streams:
    """Hook on the events by which streams wait for one another."""

    name = "streams"
    level = 1

    def __init__(self, collectives: Collectives, waits: Waits) -> None:
        self._collectives = collectives
        self._waits = waits
        self._patches = Patches()
        self._newest: dict[int, Issued] = {}
        """The newest collective on each stream but the compute stream, by the stream's raw handle."""
        self._behind: dict[int, tuple[weakref.ref[Any], Issued]] = {}
        """By identity of an event: the newest collective in front of it."""

    def install(self, recorder: Recorder) -> None:
        import torch

        if self._waits.device is None:
            recorder.probes[self.name] = WITHOUT_CUDA
            return
        self._recorder = recorder
        self._stalls: DeviceStalls = self._waits.device
        self._current_stream = raw_stream_reader()
        self._current_device = torch.cuda.current_device
        self._collectives.on_device = self
        event = torch.cuda.Event
        self._patches.replace(event, "record", self._around_record(event.record))
        self._patches.replace(event, "wait", self._around_wait(event.wait))

    def remove(self) -> None:
        self._patches.restore()
        self._collectives.on_device = None
        self._newest.clear()
        self._behind.clear()

    # -- collectives ----------------------------------------------------------------------------

    def began(self, issued: Issued) -> None:
        """One with tensors on the device is about to be issued."""
        if issued.fields[-1] == SYNCHRONOUS:
            issued.before = self._stalls.mark()

    def returned(self, issued: Issued, *, on_current_stream: bool) -> None:
        before, issued.before = issued.before, None
        stream = self._raw(None)
        if on_current_stream and stream == self._stalls.compute_stream:
            self._stalls.close(before, issued)
            return
        self._stalls.give_back(before)
        if issued.fields[-1] == SYNCHRONOUS and stream != self._stalls.compute_stream and not self._stalls.in_capture():
            self._newest[stream] = issued

    # -- events ---------------------------------------------------------------------------------

    def _around_record(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorded = guard(self._recorded, every=SAMPLED)

        @functools.wraps(original)
        def record(event: Any, stream: Any = None) -> Any:
            result = original(event, stream)
            if self._newest:
                recorded(event, stream)
            return result

        return record

    def _around_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        begin, finish = guard(self._begin, every=SAMPLED), guard(self._finish, every=SAMPLED)

        @functools.wraps(original)
        def wait(event: Any, stream: Any = None) -> Any:
            stall = begin(event, stream) if self._behind else None
            result = original(event, stream)
            if stall is not None:
                finish(stall)
            return result

        return wait

    def _recorded(self, event: Any, stream: Any) -> None:
        """An event holds the newest collective before it; recorded anew elsewhere it holds that no more."""
        key = id(event)
        self._behind.pop(key, None)
        handle = self._raw(stream)
        issued = None if handle == self._stalls.compute_stream else self._newest.get(handle)
        if issued is None:
            return
        if len(self._behind) >= MAX_PENDING:
            self._behind.pop(next(iter(self._behind)), None)
        self._behind[key] = (weakref.ref(event), issued)

    def _begin(self, event: Any, stream: Any) -> tuple[Event, Issued] | None:
        """Only the first wait for an event can stall: after it the collective is over."""
        if not self._recorder.active or self._raw(stream) != self._stalls.compute_stream:
            return None
        reference, issued = self._behind.pop(id(event), (None, None))
        if reference is None or issued is None or reference() is not event:
            return None
        before = self._stalls.mark()
        return None if before is None else (before, issued)

    def _finish(self, stall: tuple[Event, Issued]) -> None:
        self._stalls.close(*stall)

    def _raw(self, stream: Any) -> int:
        """From torch 2.13 on events take the device-generic streams as well."""
        if stream is None:
            return int(self._current_stream(self._current_device()))
        handle = getattr(stream, "cuda_stream", None)
        return int(getattr(stream, "native_handle", OTHER_DEVICE) if handle is None else handle)
