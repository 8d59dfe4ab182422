"""Memory after each phase and step: of the process on a CPU, of torch's allocator on a GPU."""

import mmap
import os
import resource
from collections.abc import Callable
from time import monotonic_ns

from traincope.events import Kind, Phase
from traincope.record.compute.phases import Phases
from traincope.record.session.recorder import Recorder

NUM_DETAILED_STEPS = 3
"""Number of first steps with a reading after every phase; later only one step in `DETAILED_INTERVAL`."""
DETAILED_INTERVAL = 16
KIBIBYTE = 1024


class Memory:
    """Reader of the allocator's counters. It resets none of them: they belong to the training."""

    name = "memory"
    level = 1

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._used = False
        """True if the training has used its GPU."""
        self._numbers: tuple[int, ...] = ()
        """Numbers of the names of `_read`'s results."""
        self._read: Callable[[], tuple[int, ...]] | None = None
        """None while nothing is read. A thread that still reads keeps its own reference."""

    def install(self, recorder: Recorder) -> None:
        """Raises OSError if /proc is missing."""
        import torch

        self._recorder = recorder
        names = recorder.names
        if torch.cuda.device_count():
            self._cuda = torch.cuda
            self._numbers = tuple(names.intern(name) for name in ("allocated", "reserved", "peak allocated"))
            self._read = self._read_cuda
        else:
            self._numbers = tuple(names.intern(name) for name in ("resident", "peak resident"))
            self._read = _process_memory
            self._read()
        recorder.between_detailed_steps(self._between_steps)

    def remove(self) -> None:
        self._read = None
        self._phases.forget(self._write)

    def _between_steps(self) -> None:
        """Read after a step, and choose whether the next one has a reading after every phase.

        A reading costs as much as all phases of a light step, so few of those have one.
        """
        recorder, step = self._recorder, self._recorder.shared.step
        if recorder.detailed or step % DETAILED_INTERVAL == 0:
            self._write(Phase.NONE)
        if step < NUM_DETAILED_STEPS or step % DETAILED_INTERVAL == 0:
            self._phases.after_phase(self._write)
            recorder.between_steps(self._step_ended)

    def _step_ended(self) -> None:
        self._phases.forget(self._write)
        self._recorder.remove_listener(self._step_ended)

    def _write(self, phase: Phase) -> None:
        read = self._read
        if read is None:
            return
        now, writer = monotonic_ns(), self._recorder.writer()
        for number, num_bytes in zip(self._numbers, read(), strict=True):
            writer.write(Kind.MEMORY, now, now, phase, number, value=num_bytes)

    def _read_cuda(self) -> tuple[int, ...]:
        if not self._used and self._cuda.is_initialized():
            self._used = True
            self._recorder.write_metadata()  # the kind of GPU is known from now on
        stats = self._cuda.memory_stats()
        return tuple(
            stats.get(key, 0)
            for key in ("allocated_bytes.all.current", "reserved_bytes.all.current", "allocated_bytes.all.peak")
        )


def _process_memory() -> tuple[int, ...]:
    """Return resident and peak resident bytes from the kernel. No file stays open, which the training might close."""
    statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        pages = int(os.read(statm, 64).split()[1])
    finally:
        os.close(statm)
    return pages * mmap.PAGESIZE, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE
