"""Readings of memory after phases and steps, and of the tensors that make it up."""

from collections.abc import Callable
from time import monotonic_ns

from traincope.events import BLOCK_STEPS, FIRST_BLOCKS, HELD, Kind, MemoryMeasure, Phase, Usage
from traincope.record.compute.memory.census import Census
from traincope.record.compute.memory.loader_workers import LoaderWorkers
from traincope.record.compute.memory.tensors import Sums, TensorBytes
from traincope.record.compute.memory.totals import Totals, totals_of
from traincope.record.compute.phases import Phases
from traincope.record.instrumentation.guard import guard
from traincope.record.session.recorder import Recorder

NUM_DETAILED_STEPS = 3
"""Number of first steps with a reading after every phase; later only one step in `DETAILED_INTERVAL`."""
DETAILED_INTERVAL = 16
COUNTING_INTERVAL = 256
"""Later, tensors are counted in one step of this many. A count of 1,000 parameters takes 5 ms, a hundred times as long
as a reading of the totals.
"""
READING_INTERVAL_NS = 200_000_000
"""Least time between two readings at steps. A reading costs as much as all phases of a step."""
EARLY_STEPS = FIRST_BLOCKS * BLOCK_STEPS
"""Number of first steps that all have a reading: a short run may grow too."""
MAX_COUNTS = 17
"""Number of counts in one step: between steps, and after 16 phases. A pipeline has many phases."""


class Memory:
    """Reader of memory. It resets no counter that belongs to the training, unless the run's owner allows it."""

    name = "memory"
    level = 1

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._used = False
        """True if the training has used its GPU."""
        self._total_numbers: tuple[int, ...] = ()
        """Numbers of the names of the totals."""
        self._held_numbers: tuple[int, ...] = ()
        self._workers_numbers = (0, 0)
        """Numbers of the names of the memory and the CPU time of loader workers."""
        self._workers = LoaderWorkers(phases.loaders)
        self._totals: Totals | None = None
        """None while nothing is read. A thread that still reads keeps its own reference."""
        self._read_ns = 0
        """Instant of the latest reading."""
        self._counts_left = 0
        """Number of counts that the open step may still make."""
        self._count: Callable[[], Sums | None] = lambda: None
        self._read = guard(self._write_all)

    def install(self, recorder: Recorder) -> None:
        """Raises OSError if /proc is missing."""
        import torch

        self._recorder = recorder
        totals = totals_of(torch.cuda, resets_peaks=recorder.resets_memory_peaks)
        self._total_numbers = tuple(map(recorder.names.intern, totals.measures))
        self._held_numbers = tuple(map(recorder.names.intern, HELD))
        self._workers_numbers = (
            recorder.names.intern(MemoryMeasure.LOADER_WORKERS),
            recorder.names.intern(Usage.WORKERS_CPU_TIME),
        )
        phases = self._phases
        tensors = TensorBytes(phases.modules, phases.optimizers, device_type=totals.device_type)
        self._count = guard(tensors.count)  # the tensors may be of the training's own classes
        self._cuda = torch.cuda if totals.device_type == "cuda" else None
        self._totals = totals
        recorder.between_detailed_steps(self._between_steps)
        recorder.between_blocks(Census(recorder, device_type=totals.device_type).between_blocks)
        recorder.before_failing(self._write_last)

    def remove(self) -> None:
        self._totals = None
        self._phases.forget(self._write_all)

    def _between_steps(self) -> None:
        """Read after a step, and choose whether the next one has a reading after every phase."""
        recorder, step = self._recorder, self._recorder.shared.step
        chosen = step < NUM_DETAILED_STEPS or step % DETAILED_INTERVAL == 0
        if chosen:
            counts = step < NUM_DETAILED_STEPS or step % COUNTING_INTERVAL == 0
            self._counts_left = MAX_COUNTS if counts else 0
            self._read(Phase.NONE)
            self._phases.after_phase(self._write_all)
            recorder.between_steps(self._step_ended)
        elif step < EARLY_STEPS or monotonic_ns() - self._read_ns >= READING_INTERVAL_NS:
            self._counts_left = 0
            self._read(Phase.NONE)

    def _step_ended(self) -> None:
        self._phases.forget(self._write_all)
        self._recorder.remove_listener(self._step_ended)

    def _write_last(self) -> None:
        """Write the memory of a training that an exception ends, while the exception still holds its tensors."""
        self._counts_left = 1
        self._write_all(self._phases.raised_in)

    def _write_all(self, phase: Phase) -> None:
        """Write the totals, and at the same instant the bytes of tensors by their use."""
        now = self._write(phase)
        held = None if now is None or self._counts_left <= 0 else self._count()
        self._counts_left -= 1
        if now is not None and held is not None:
            writer = self._recorder.writer()
            for number, num_bytes in zip(self._held_numbers, held, strict=True):
                writer.write(Kind.MEMORY, now, now, phase, number, value=num_bytes)

    def _write(self, phase: Phase) -> int | None:
        """Write the totals. Returns the instant, or None if nothing is read."""
        totals = self._totals
        if totals is None:
            return None
        if self._cuda is not None and not self._used and self._cuda.is_initialized():
            self._used = True
            self._recorder.write_metadata()  # the kind of GPU is known from now on
        now, writer = monotonic_ns(), self._recorder.writer()
        self._read_ns = now
        for number, num_bytes in zip(self._total_numbers, totals.read(), strict=True):
            writer.write(Kind.MEMORY, now, now, phase, number, value=num_bytes)
        of_workers = self._workers.read() if phase is Phase.NONE else None
        if of_workers is not None:
            memory_number, cpu_number = self._workers_numbers
            writer.write(Kind.MEMORY, now, now, phase, memory_number, value=of_workers.resident_bytes)
            writer.write(Kind.USAGE, now, now, phase, cpu_number, value=of_workers.cpu_ns)
        return now
