"""Total memory of a rank: of its process, and on a GPU of torch's allocator.

The peak counters of torch's allocator belong to the training: `torch.cuda.max_memory_allocated()` reads them. They are
reset only if the training's owner allows it (`run(memory_peaks=True)`).
"""

import mmap
import os
import resource
from collections.abc import Mapping
from typing import Any, Protocol

from traincope.events import MemoryMeasure

KIBIBYTE = 1024
ALLOCATED, RESERVED, ALL, CURRENT, PEAK = "allocated_bytes", "reserved_bytes", "all", "current", "peak"
"""Keys of `torch.cuda.memory_stats_as_nested_dict()`, which takes an eighth of the time of `memory_stats()`."""


class Totals(Protocol):
    """Reader of a rank's total memory."""

    @property
    def measures(self) -> tuple[MemoryMeasure, ...]: ...

    @property
    def device_type(self) -> str:
        """torch's name of the device whose memory it is."""

    def read(self) -> tuple[int, ...]:
        """Return the bytes of each of `measures` now."""


class Allocator(Protocol):
    """The used part of `torch.cuda`'s memory interface."""

    def memory_stats_as_nested_dict(self) -> Mapping[str, Any]: ...

    def reset_peak_memory_stats(self) -> None: ...


class ProcessTotals:
    """Memory of the process on the host."""

    measures = (MemoryMeasure.RESIDENT, MemoryMeasure.PEAK_RESIDENT)
    device_type = "cpu"

    def read(self) -> tuple[int, ...]:
        return process_memory()


class AllocatorTotals:
    """Counters of torch's allocator on the current GPU, and memory of the process on the host."""

    device_type = "cuda"

    def __init__(self, allocator: Allocator, *, resets_peaks: bool = False) -> None:
        """`resets_peaks`: reset the peak counter at each reading, so that each one has the peak since the last."""
        self._allocator = allocator
        self._resets_peaks = resets_peaks
        self._peak = 0
        """Largest allocation so far: a reset counter has forgotten it."""
        peaks = (MemoryMeasure.RECENT_PEAK_ALLOCATED,) if resets_peaks else ()
        counters = (MemoryMeasure.ALLOCATED, MemoryMeasure.RESERVED, MemoryMeasure.PEAK_ALLOCATED, *peaks)
        self.measures = (*counters, *ProcessTotals.measures)

    def read(self) -> tuple[int, ...]:
        """Return the counters and the process's memory. The counters are 0 while the training has not used the GPU."""
        stats = self._allocator.memory_stats_as_nested_dict()
        allocated, reserved, recent = (_all(stats, *keys) for keys in _COUNTERS)
        if not self._resets_peaks:
            return allocated, reserved, recent, *process_memory()
        if stats:
            self._allocator.reset_peak_memory_stats()
        self._peak = max(self._peak, recent)
        return allocated, reserved, self._peak, recent, *process_memory()


_COUNTERS = ((ALLOCATED, CURRENT), (RESERVED, CURRENT), (ALLOCATED, PEAK))


def _all(stats: Mapping[str, Any], counter: str, value: str) -> int:
    """Return a counter of all pools; 0 before the training has used the GPU."""
    return int(stats[counter][ALL][value]) if stats else 0


def process_memory() -> tuple[int, ...]:
    """Return resident and peak resident bytes from the kernel. No file stays open, which the training might close.

    The kernel brings the peak up to date later than the resident bytes.
    """
    statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    try:
        pages = int(os.read(statm, 64).split()[1])
    finally:
        os.close(statm)
    resident = pages * mmap.PAGESIZE
    return resident, max(resident, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE)


def totals_of(cuda: Any, *, resets_peaks: bool) -> Totals:
    """Return the reader for this process: of the GPU if it sees one. Raises OSError if /proc is missing."""
    if cuda.device_count():
        return AllocatorTotals(cuda, resets_peaks=resets_peaks)
    process_memory()
    return ProcessTotals()
