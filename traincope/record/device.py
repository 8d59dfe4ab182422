"""Stalls of the compute stream on a GPU: an event before the wait, one after, no synchronisation.

On CUDA a wait does not block the host: it makes the compute stream wait. The events' difference is
the stall, exact. Events come from a pool; a thread of ours asks with `query()` until both have
happened, and only then writes the record. Nothing is recorded on a capturing stream, and the
thread rests while a capture is under way (pytorch #104487, #148594).
"""

import threading
from collections import deque
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Protocol

from traincope.events import Flag, Kind
from traincope.record.collectives import Issued
from traincope.record.guard import guard
from traincope.record.recorder import Recorder

POLL_SECONDS = 0.01
POOL_SIZE = 1_024
"""Brackets in flight at most: beyond, a stall goes unmeasured rather than memory unbounded."""
ANCHOR_INTERVAL_NS = 10_000_000_000
"""`elapsed_time` is a float32 of milliseconds: after 10 s its last digit is still a microsecond."""
ANCHOR_TOLERANCE_NS = 200_000


class Event(Protocol):
    """What is used of `torch.cuda.Event(enable_timing=True)`."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any) -> float: ...


class Device(Protocol):
    """The accelerator, as far as brackets need it."""

    def make_event(self) -> Event: ...

    def make_anchor(self) -> Event:
        """An event just recorded on a stream of its own that has nothing else to do."""

    def capturing(self) -> bool:
        """Whether the current stream is being captured into a graph."""


@dataclass(slots=True)
class _Bracket:
    issued: Issued
    before: Event
    after: Event
    step: int


@dataclass(slots=True)
class _Anchor:
    """A moment known on both clocks."""

    event: Event
    at_ns: int


class DeviceStalls:
    """Brackets around waits of the current stream, resolved off the training thread."""

    def __init__(self, recorder: Recorder, device: Device) -> None:
        self._recorder = recorder
        self._device = device
        self._free: deque[Event] = deque()
        self._made = 0
        self._waiting: deque[_Bracket] = deque()
        self._capturing = False
        self._anchor: _Anchor | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=guard(self._run), name="traincope-device", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Resolve what has happened by now; what the device has not done yet is lost."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def mark(self) -> Event | None:
        """An event on the current stream, now; None on a capturing stream or out of events."""
        self._capturing = self._device.capturing()
        if self._capturing:
            return None
        if self._free:
            event = self._free.popleft()
        elif self._made < 2 * POOL_SIZE:
            event = self._device.make_event()
            self._made += 1
        else:
            return None
        event.record()
        return event

    def close(self, before: Event | None, issued: Issued) -> None:
        """The wait that began at `before` has been put on the current stream."""
        if before is None:
            return
        after = self.mark()
        if after is None:
            self._free.append(before)
            return
        self._waiting.append(_Bracket(issued, before, after, self._recorder.shared.step))

    def resolve(self) -> int:
        """Write the brackets that are over, in order; returns how many."""
        if self._capturing:
            return 0
        self._keep_anchor()
        written = 0
        while self._waiting and self._anchor is not None and self._waiting[0].after.query():
            self._write(self._waiting.popleft(), self._anchor)
            written += 1
        return written

    def _run(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            self.resolve()
        self.resolve()

    def _keep_anchor(self) -> None:
        now = monotonic_ns()
        if self._anchor is not None and now - self._anchor.at_ns < ANCHOR_INTERVAL_NS:
            return
        before_ns = monotonic_ns()
        event = self._device.make_anchor()
        while not event.query():
            if monotonic_ns() - before_ns > ANCHOR_TOLERANCE_NS and self._anchor is not None:
                return
        self._anchor = _Anchor(event, (before_ns + monotonic_ns()) // 2)

    def _write(self, bracket: _Bracket, anchor: _Anchor) -> None:
        name, group, sequence, peer, tag, num_bytes, flags = bracket.issued.fields
        flags |= Flag.DEVICE
        start_ns = anchor.at_ns + round(anchor.event.elapsed_time(bracket.before) * 1e6)
        end_ns = start_ns + round(bracket.before.elapsed_time(bracket.after) * 1e6)
        self._recorder.writer().write(
            Kind.STALL, start_ns, end_ns, 0, name, group, sequence, peer, tag, num_bytes, flags, bracket.step
        )
        self._free += (bracket.before, bracket.after)


class CudaDevice:
    """`torch.cuda`, behind the seam the tests use."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._stream = torch.cuda.Stream()

    def make_event(self) -> Event:
        event: Event = self._cuda.Event(enable_timing=True)
        return event

    def make_anchor(self) -> Event:
        with self._cuda.stream(self._stream):
            event = self.make_event()
            event.record()
        return event

    def capturing(self) -> bool:
        return bool(self._cuda.is_current_stream_capturing())
