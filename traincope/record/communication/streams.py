"""Hook on CUDA events, for collectives that a stream orders without a wait for their work.

A synchronous NCCL collective (torch 2.8+) runs on the current stream, and its work is null. On the compute stream its
own run is the stall. FSDP2 issues its collectives this way on separate streams, and the compute stream then waits for
an event recorded there: that wait is the stall.

The messages of a batch (`batch_isend_irecv` on NCCL) have no works either. The end of the batch returns one for all.

`Stream.wait_event`, `wait_stream` and `record_event` all end in `Event.record` and `Event.wait`. Waits below Python
(`torch.Stream`, the device-generic class) are not seen.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from traincope.record.communication.collectives import POINT_TO_POINT, Collectives
from traincope.record.communication.pending import FLAGS, MAX_PENDING, Issued
from traincope.record.communication.waits import Waits
from traincope.record.gpu.device import OTHER_DEVICE, DeviceMarks, Event
from traincope.record.instrumentation.guard import SAMPLING_INTERVAL, guard
from traincope.record.instrumentation.patching import Patches
from traincope.record.instrumentation.torch_private import end_of_batch, raw_stream_reader
from traincope.record.session.recorder import Recorder

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
        """The newest collective on each stream except the compute stream, by the stream's raw handle."""
        self._event_collectives: dict[int, tuple[weakref.ref[Any], Issued]] = {}
        """The newest collective before each event, by the event's identity."""
        self._batch: list[Issued] = []
        """The messages of the batch under way, in order of issue."""

    def install(self, recorder: Recorder) -> None:
        import torch

        if self._waits.device is None:
            recorder.probes[self.name] = WITHOUT_CUDA
            return
        self._recorder = recorder
        self._stalls: DeviceMarks = self._waits.device
        self._current_stream = raw_stream_reader()
        self._current_device = torch.cuda.current_device
        self._collectives.on_device = self
        event = torch.cuda.Event
        self._patches.replace(event, "record", self._around_record(event.record))
        self._patches.replace(event, "wait", self._around_wait(event.wait))
        owner, name = end_of_batch()
        self._patches.replace(owner, name, self._around_batch(getattr(owner, name)))

    def remove(self) -> None:
        self._patches.restore()
        self._collectives.on_device = None
        self._newest.clear()
        self._event_collectives.clear()
        self._batch.clear()

    def began(self, issued: Issued) -> None:
        """Note that a collective with tensors on the device is about to be issued."""
        self._stalls.issue(issued)
        if issued.fields[FLAGS] == SYNCHRONOUS:
            issued.before = self._stalls.mark()

    def returned(self, issued: Issued, *, on_current_stream: bool) -> None:
        before, issued.before = issued.before, None
        if on_current_stream and issued.fields[FLAGS] & POINT_TO_POINT:
            self._batch.append(issued)
            return
        stream = self._raw(None)
        if on_current_stream and stream == self._stalls.compute_stream:
            self._stalls.close(before, issued)
            return
        self._stalls.give_back(before)
        if (
            issued.fields[FLAGS] == SYNCHRONOUS
            and stream != self._stalls.compute_stream
            and not self._stalls.in_capture()
        ):
            self._newest[stream] = issued

    def _around_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        ended = guard(self._batch_ended)

        @functools.wraps(original)
        def end_batch(*args: Any, **kwargs: Any) -> Any:
            work = original(*args, **kwargs)
            if self._batch:
                ended(work)
            return work

        return end_batch

    def _batch_ended(self, work: Any) -> None:
        """Let a wait for the batch's work end all its messages. Without a work, nothing shows their end."""
        (first, *others), self._batch = self._batch, []
        first.batch = tuple(others)
        if work is None:
            self._stalls.close(None, first)
        else:
            self._collectives.pending.add_work(work, first, self._recorder.threads.writer)

    def _around_record(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorded = guard(self._recorded, every=SAMPLING_INTERVAL)

        @functools.wraps(original)
        def record(event: Any, stream: Any = None) -> Any:
            result = original(event, stream)
            if self._newest:
                recorded(event, stream)
            return result

        return record

    def _around_wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        begin, finish = guard(self._begin, every=SAMPLING_INTERVAL), guard(self._finish, every=SAMPLING_INTERVAL)

        @functools.wraps(original)
        def wait(event: Any, stream: Any = None) -> Any:
            stall = begin(event, stream) if self._event_collectives else None
            result = original(event, stream)
            if stall is not None:
                finish(stall)
            return result

        return wait

    def _recorded(self, event: Any, stream: Any) -> None:
        """Note that an event follows the newest collective on its stream. A record elsewhere ends this."""
        key = id(event)
        self._event_collectives.pop(key, None)
        handle = self._raw(stream)
        issued = None if handle == self._stalls.compute_stream else self._newest.get(handle)
        if issued is None:
            return
        if len(self._event_collectives) >= MAX_PENDING:
            self._event_collectives.pop(next(iter(self._event_collectives)), None)
        self._event_collectives[key] = (weakref.ref(event), issued)

    def _begin(self, event: Any, stream: Any) -> tuple[Event, Issued] | None:
        """Open the stall of a wait. Only the first wait for an event can stall: after it the collective is over."""
        if not self._recorder.active or self._raw(stream) != self._stalls.compute_stream:
            return None
        reference, issued = self._event_collectives.pop(id(event), (None, None))
        if reference is None or issued is None or reference() is not event:
            return None
        before = self._stalls.mark()
        return None if before is None else (before, issued)

    def _finish(self, stall: tuple[Event, Issued]) -> None:
        self._stalls.close(*stall)

    def _raw(self, stream: Any) -> int:
        """Return the raw handle of a stream. From torch 2.13 on events also take device-generic streams."""
        if stream is None:
            return int(self._current_stream(self._current_device()))
        handle = getattr(stream, "cuda_stream", None)
        return int(getattr(stream, "native_handle", OTHER_DEVICE) if handle is None else handle)
