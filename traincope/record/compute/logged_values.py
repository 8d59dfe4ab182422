"""Values of `run.log(loss=...)` on the timeline, copied from a GPU without waiting for it."""

import struct
import sys
from collections import deque
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from traincope.events import Kind
from traincope.record.instrumentation.torch_private import without_functions

if TYPE_CHECKING:
    from traincope.record.session.recorder import Recorder

MAX_UNDER_WAY = 256
"""Maximum number of running copies from the device. Further values are dropped and counted."""

_bits = struct.Struct("@d")
_words = struct.Struct("@q")


@dataclass(slots=True)
class _Copy:
    """A value on its way from the device to pinned memory."""

    name: int
    step: int
    at_ns: int
    memory: Any
    arrived: Any


class Scalars:
    """The logged values of one run."""

    def __init__(self, recorder: "Recorder") -> None:
        self._recorder = recorder
        self._copies: deque[_Copy] = deque()

    def log(self, name: str, value: Any) -> None:
        """Log a number, or a tensor of one element. Raises TypeError or ValueError for anything else."""
        torch = sys.modules.get("torch")
        number, now = self._recorder.names.intern(name), monotonic_ns()
        if torch is None or not isinstance(value, torch.Tensor):
            self._write(number, float(value), step=self._recorder.shared.step, at_ns=now)
            return
        with without_functions():
            local = _local(value.detach())
            if local.is_cuda:
                self._fetch(number, local, at_ns=now)
            else:
                self._write(number, float(local), step=self._recorder.shared.step, at_ns=now)

    def resolve(self) -> None:
        """Write the values that have arrived, in order. While some are under way it is called between steps.

        During a capture nothing is queried: that would break the capture.
        """
        if self._copies and _is_capturing():
            return
        while self._copies and self._copies[0].arrived.query():
            copy = self._copies.popleft()
            self._write(copy.name, float(copy.memory), step=copy.step, at_ns=copy.at_ns)
        if not self._copies:
            self._recorder.remove_listener(self.resolve)
            if self._copies:  # another thread has logged one meanwhile
                self._recorder.between_steps(self.resolve)

    def finish(self) -> None:
        """Write the values that have arrived and count the rest: waiting for them would mean waiting for the device."""
        try:
            self.resolve()
        finally:  # a broken device raises
            self._recorder.values_left_out += len(self._copies)

    def _fetch(self, number: int, value: Any, *, at_ns: int) -> None:
        """Copy a value into pinned memory, after all queued work.

        Nothing is copied on a stream that is being captured.
        """
        import torch

        if len(self._copies) >= MAX_UNDER_WAY or _is_capturing():
            self._recorder.values_left_out += 1
            return
        memory = torch.empty((), dtype=value.dtype, device="cpu", pin_memory=True)
        memory.copy_(value.reshape(()), non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._follow(_Copy(number, self._recorder.shared.step, at_ns, memory, arrived))

    def _follow(self, copy: _Copy) -> None:
        self._copies.append(copy)
        self._recorder.between_steps(self.resolve)

    def _write(self, number: int, value: float, *, step: int, at_ns: int) -> None:
        (bits,) = _words.unpack(_bits.pack(value))
        self._recorder.writer().write(Kind.SCALAR, at_ns, at_ns, name=number, value=bits, step=step)


def _is_capturing() -> bool:
    import torch

    return torch.cuda.is_current_stream_capturing()


def _local(value: Any) -> Any:
    """Return this rank's tensor of a replicated DTensor. Gathering shards would be a collective."""
    placements = getattr(value, "placements", None)
    if placements is None:
        return value
    if not all(placement.is_replicate() for placement in placements):
        raise TypeError("run.log() was given a DTensor that is not replicated; log value.full_tensor() instead")
    return value.to_local()
