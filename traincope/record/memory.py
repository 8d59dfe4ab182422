"""Memory after each phase and step: of the process on a CPU, of torch's allocator on a GPU."""

import mmap
import os
import resource
from collections.abc import Callable
from time import monotonic_ns

from traincope.events import Kind, Phase
from traincope.record.phases import Phases
from traincope.record.recorder import Recorder

CLOSELY = 3
"""Steps looked at after every phase, from the first one on; later only one in `SELDOM`."""
SELDOM = 16
KIBIBYTE = 1024


class Memory:
    """Reads counters that are kept anyway, and resets none of them: they are the training's own."""

    name = "memory"
    level = 1

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._used = False
        """Whether the training has used its GPU."""
        self._numbers: tuple[int, ...] = ()
        """Names of what `_read` returns."""
        self._read: Callable[[], tuple[int, ...]] | None = None
        """None while nothing is read; a thread that still reads has it for itself."""

    def install(self, recorder: Recorder) -> None:
        """Raises OSError where there is no /proc."""
        import torch

        self._recorder = recorder
        names = recorder.names
        if torch.cuda.device_count():
            self._cuda = torch.cuda
            self._numbers = tuple(names.intern(name) for name in ("allocated", "reserved", "peak allocated"))
            self._read = self._read_cuda
        else:
            self._numbers = tuple(names.intern(name) for name in ("resident", "peak resident"))
            self._read = _of_process
            self._read()
        self._phases.after_phase(self._after_phase)
        recorder.between_steps(self._between_steps)

    def remove(self) -> None:
        self._read = None

    def _after_phase(self, phase: Phase) -> None:
        step = self._recorder.shared.step
        if step < CLOSELY or step % SELDOM == 0:
            self._write(phase)

    def _between_steps(self) -> None:
        self._write(Phase.NONE)

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
            self._recorder.note()  # of which kind it is can be told from now on
        stats = self._cuda.memory_stats()
        return tuple(
            stats.get(key, 0)
            for key in ("allocated_bytes.all.current", "reserved_bytes.all.current", "allocated_bytes.all.peak")
        )


def _of_process() -> tuple[int, ...]:
    """Resident and peak resident bytes, by the kernel. No file stays open, which the training might close."""
    statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        pages = int(os.read(statm, 64).split()[1])
    finally:
        os.close(statm)
    return pages * mmap.PAGESIZE, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE
