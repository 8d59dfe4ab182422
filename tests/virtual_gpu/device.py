"""The recorder's view of a virtual GPU: its `Device` protocol, whose events happen when the model says so."""

from collections.abc import Callable
from typing import Any

from tests.virtual_gpu.machine import Gpu, Queued

ANCHORS = -1
"""Stream of the anchors, which waits for nothing."""


class VirtualEvent:
    """An event of the current stream, or of the stream of the anchors."""

    def __init__(self, device: "VirtualDevice", stream: int | None = None) -> None:
        self._device = device
        self._stream = stream
        self._queued: Queued | None = None

    @property
    def at_ns(self) -> int | None:
        """When the event happens, on the host's clock; None if it is not recorded, or not yet known."""
        return None if self._queued is None else self._queued.end_ns

    def record(self) -> None:
        stream = self._device.stream if self._stream is None else self._stream
        self._queued = self._device.gpu.record(self._device.now_ns(), stream)

    def query(self) -> bool:
        """Return whether the event has happened. An event without a record has, as in CUDA."""
        if self._queued is None:
            return True
        self._device.gpu.settle()
        return self.at_ns is not None and self.at_ns <= self._device.now_ns()

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to the other. Raises RuntimeError if one has not happened."""
        start_ns, end_ns = self.at_ns, end_event.at_ns
        if start_ns is None or end_ns is None:
            raise RuntimeError("elapsed_time() of an event that has not happened")
        return float(end_ns - start_ns) / 1e6


class VirtualDevice:
    """`Device` of the recorder. `now_ns` reads the host's clock; `stream` is the current stream."""

    def __init__(self, gpu: Gpu, now_ns: Callable[[], int], *, stream: int) -> None:
        self.gpu = gpu
        self.now_ns = now_ns
        self.stream = stream
        self.is_capturing = False

    def in_use(self) -> bool:
        return True

    def make_event(self) -> VirtualEvent:
        return VirtualEvent(self)

    def record(self, event: VirtualEvent, stream: int) -> None:
        assert stream == self.stream
        event.record()

    def make_anchor(self) -> VirtualEvent:
        event = VirtualEvent(self, ANCHORS)
        event.record()
        return event

    def capturing(self) -> bool:
        return self.is_capturing

    def current_stream(self) -> int:
        return self.stream

    def enter_thread(self) -> None:
        """A virtual device has no capture to disturb."""
