"""Stalls of the compute stream on a GPU: an event before the wait, one after, no synchronisation.

On CUDA a wait does not block the host: it makes the compute stream wait. The events' difference is
the stall, exact. Events come from a pool; a thread of ours asks with `query()` until both have
happened, and only then writes the record.

A query from one thread breaks the CUDA graph that another is capturing (pytorch #104487), unless
the one that asks has told the driver that captures are none of its business. torch's own watchdog
does so (#148594), and our thread before its first query. Nothing is recorded on a
capturing stream, and the thread rests while one is known to capture. Nothing here touches the
device before the training has: a context on the wrong GPU costs hundreds of MiB there.
"""

import ctypes
import threading
from collections import deque
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Protocol

from traincope.events import Flag, Kind
from traincope.record.guard import guard
from traincope.record.pending import Issued
from traincope.record.recorder import Recorder
from traincope.record.torch_private import raw_stream_reader

POLL_SECONDS = 0.01
POOL_SIZE = 1_024
"""Brackets in flight at most: beyond, a stall goes unmeasured, and is counted, rather than memory unbounded."""
ANCHOR_INTERVAL_NS = 10_000_000_000
"""`elapsed_time` is a float32 of milliseconds: after 10 s its last digit is still a microsecond."""
ANCHOR_TOLERANCE_NS = 200_000
"""How wide the moment of an anchor may be on the host's clock."""
ANCHOR_PATIENCE_NS = 20_000_000
"""How long a look watches for an anchor to happen. Streams share queues of the device, all of them a single one under
CUDA_DEVICE_MAX_CONNECTIONS=1: then an anchor's own stream is idle, and it happens only behind all that is queued."""
ANCHOR_PAUSE_SECONDS = 100e-6
"""Between two questions, once it has not happened at once."""

DRIVER = "libcuda.so.1"
CAPTURE_MODE_RELAXED = 2
"""`CU_STREAM_CAPTURE_MODE_RELAXED` of cuda.h."""
DEFAULT_STREAM = 0
"""Its raw handle, on every device."""
OTHER_DEVICE = -1
"""No stream's handle: where a process trains on several devices, only the first one's stalls are measured."""


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

    def current_stream(self) -> int:
        """The calling thread's current stream, by its raw handle."""

    def enter_thread(self) -> None:
        """Make the calling thread one that disturbs no capture; raises OSError or RuntimeError if it cannot."""


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
        self.compute_stream = DEFAULT_STREAM
        """The stream that was current between the last two steps; what waits on another delays no computing."""
        self._used = False
        """Whether the training has used the device: nothing may be asked of it before."""
        self._started = False
        self._off = False
        self._free: deque[Event] = deque()
        self._made = 0
        self._waiting: deque[_Bracket] = deque()
        self._capturing = False
        self._anchor: _Anchor | None = None
        self._awaited: Event | None = None
        """What is to be the next anchor, and had not happened when it was last looked at."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traincope-device", daemon=True)

    def stop(self) -> None:
        """Resolve what has happened by now; what the device has not done yet is lost, and counted."""
        self._off = True
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)
        self._recorder.stalls_unmeasured += len(self._waiting)
        self._waiting.clear()

    def choose_stream(self) -> None:
        """Between two steps: the stream that is current there is the one that computes."""
        if self._used and not self._off:
            self._capturing = self._device.capturing()
            if not self._capturing:
                self.compute_stream = self._device.current_stream()

    def in_capture(self) -> bool:
        """Whether what is queued on the current stream does not run, but becomes part of a graph."""
        return self._device.capturing()

    def mark(self) -> Event | None:
        """An event on the compute stream, now; None where another stream is current or captures, or out of events."""
        if self._off:
            return None
        self._used = True
        if self._device.current_stream() != self.compute_stream:
            return None
        self._capturing = self._device.capturing()
        if self._capturing:
            return None
        if not self._started:
            self._started = True
            self._thread.start()
        if self._free:
            event = self._free.popleft()
        elif self._made < 2 * POOL_SIZE:
            event = self._device.make_event()
            self._made += 1
        else:
            self._recorder.stalls_unmeasured += 1
            return None
        event.record()
        return event

    def close(self, before: Event | None, issued: Issued) -> None:
        """The wait that began at `before` has been put on the current stream."""
        if before is None:
            return
        after = self.mark()
        if after is None:
            self.give_back(before)
            return
        self._waiting.append(_Bracket(issued, before, after, self._recorder.shared.step))

    def give_back(self, before: Event | None) -> None:
        """Nothing waited after this mark."""
        if before is not None:
            self._free.append(before)

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
        """Every look passes a guard of its own: what it costs is then its step's, and not the run's last one's."""
        if not guard(self._enter)():
            self._off = True
            return
        resolve = guard(self.resolve)
        while not self._stopped.wait(POLL_SECONDS):
            resolve()
        resolve()

    def _enter(self) -> bool:
        try:
            self._device.enter_thread()
        except (OSError, AttributeError, RuntimeError) as error:
            self._recorder.probes["device stalls"] = f"absent: {error}"
            return False
        return True

    def _keep_anchor(self) -> None:
        """An anchor's moment lies between the last question that found it not yet happened, and the first that did."""
        began_ns = not_yet_ns = monotonic_ns()
        if self._anchor is not None and began_ns - self._anchor.at_ns < ANCHOR_INTERVAL_NS:
            return
        if self._awaited is None or self._awaited.query():  # between two looks, unseen
            self._awaited = self._device.make_anchor()
        event, asked_ns = self._awaited, monotonic_ns()
        while not event.query():
            watched_ns, not_yet_ns = asked_ns - began_ns, asked_ns
            if watched_ns > ANCHOR_PATIENCE_NS:
                return
            if watched_ns > ANCHOR_TOLERANCE_NS and self._stopped.wait(ANCHOR_PAUSE_SECONDS):
                return
            asked_ns = monotonic_ns()
        happened_ns, self._awaited = monotonic_ns(), None
        if happened_ns - not_yet_ns <= ANCHOR_TOLERANCE_NS:
            self._anchor = _Anchor(event, (not_yet_ns + happened_ns) // 2)

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
    """`torch.cuda`, behind the seam the tests use; the device is the one that the first mark finds current."""

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._raw_stream = raw_stream_reader()
        self._index: int | None = None
        self._stream: Any = None
        """Of the anchors, which must wait for nothing."""

    def make_event(self) -> Event:
        event: Event = self._cuda.Event(enable_timing=True)
        return event

    def make_anchor(self) -> Event:
        if self._stream is None:
            self._stream = self._cuda.Stream(self._index)
        with self._cuda.stream(self._stream):
            event = self.make_event()
            event.record()
        return event

    def capturing(self) -> bool:
        return bool(self._cuda.is_current_stream_capturing())

    def current_stream(self) -> int:
        """Called with tensors of the training on the device, so its context is there."""
        if self._index is None:
            self._index = self._cuda.current_device()
        if self._cuda.current_device() != self._index:
            return OTHER_DEVICE
        return int(self._raw_stream(self._index))

    def enter_thread(self) -> None:
        """A thread begins on device 0, whatever the training uses, and in the driver's strictest capture mode."""
        if self._index is not None:
            self._cuda.set_device(self._index)
        answer = relax_captures()
        if answer:
            self.make_anchor()  # gives the thread the device's context, in case the driver wants one first
            answer = relax_captures()
        if answer:
            raise RuntimeError(f"the CUDA driver does not let a thread stay out of captures (error {answer})")


def relax_captures() -> int:
    """Tell the driver that the calling thread disturbs no capture; 0, or the driver's error."""
    mode = ctypes.c_int(CAPTURE_MODE_RELAXED)
    return int(ctypes.CDLL(DRIVER).cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
