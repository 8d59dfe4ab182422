"""Hook on the GPU's hardware: throttling, ECC errors, remapped rows and XIDs become events; samples are recorded.

A thread of ours queries NVML; the training's thread never does. That thread neither initialises CUDA nor calls it. NVML
delivers XIDs at once. Everything else is polled every `POLL_SECONDS`, so such an event happened up to
`seen_within_seconds` before its record.

The training's thread writes the latest samples (energy, power, clock, temperature, utilization) between steps: records
of another thread would hide a hang of the training.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic_ns
from types import ModuleType
from typing import TypeVar

from traincope.events import Kind, Phase
from traincope.record.gpu.measures import (
    EccErrors,
    GpuReading,
    GpuSamples,
    Measure,
    NvlinkErrors,
    RowRemapping,
    Throttling,
)
from traincope.record.gpu.nvml import LIBRARY, Gpu, Refusal, has_driver, load
from traincope.record.gpu.xids import meaning
from traincope.record.instrumentation.guard import guard
from traincope.record.instrumentation.own_threads import OwnThread
from traincope.record.session.environment import gpu_in_use
from traincope.record.session.recorder import Recorder
from traincope.store.job.process import name_this_thread

POLL_SECONDS = 2.0
WAIT_SECONDS = 0.25
"""Time the thread waits for an XID before it checks whether to end. The end of the run waits no longer than that."""
JOIN_SECONDS = 1.0
"""Maximum delay of the end of the run by a driver that hangs. The thread is then abandoned."""
MAX_EVENTS_PER_NAME = 1_000
"""Maximum number of events of one name in a run. The last one is marked as such."""

XIDS = "XIDs"
NO_GPU = "off: nothing to watch: no GPU is in use"
NO_DRIVER = f"off: nothing to watch: no NVIDIA driver on this host ({LIBRARY})"


T = TypeVar("T")


def _find_torch_gpu() -> str | None:
    torch = sys.modules.get("torch")
    return None if torch is None else gpu_in_use(torch.cuda)


class Hardware:
    """Hook on nothing in torch. It starts at the first boundary of steps at which a GPU is in use."""

    name = "hardware"
    level = 0

    def __init__(self, find_gpu: Callable[[], str | None] = _find_torch_gpu) -> None:
        self._find_gpu = find_gpu
        self._watch: _Watch | None = None
        self._nvml: ModuleType | None = None
        self._searched_ns: int | None = None
        """Time of the last search for the GPU in use."""
        self._noted_state = ""

    def install(self, recorder: Recorder) -> None:
        """Raises FileNotFoundError or ImportError if the host has an NVIDIA driver but lacks a part to query it."""
        self._recorder = recorder
        if not has_driver():
            recorder.probes[self.name] = NO_DRIVER
            return
        self._nvml = load()
        recorder.probes[self.name] = self._noted_state = NO_GPU
        recorder.between_steps(self._between_steps)

    def remove(self) -> None:
        self._nvml = None
        if self._watch is not None:
            self._watch.stop()
            self._recorder.probes[self.name] = self._watch.state
            self._watch = None

    def _between_steps(self) -> None:
        """Start the watch, or write its samples. Only this thread rewrites `rank.json`, when the state has changed."""
        if self._nvml is None:
            return
        if self._watch is None:
            self._begin(self._nvml)
            return
        self._write(self._watch.samples.take())
        if self._watch.state != self._noted_state:
            self._recorder.probes[self.name] = self._noted_state = self._watch.state
            self._recorder.write_metadata()

    def _write(self, reading: GpuReading) -> None:
        at_ns, recorder = reading.at_ns, self._recorder
        for name, value in reading.samples.items():
            recorder.main.write(Kind.GPU, at_ns, at_ns, Phase.NONE, recorder.names.intern(name), value=value)

    def _begin(self, nvml: ModuleType) -> None:
        now = monotonic_ns()
        if self._searched_ns is not None and now - self._searched_ns < POLL_SECONDS * 1e9:
            return
        self._searched_ns = now
        uuid = self._find_gpu()
        if uuid is not None:
            self._watch = _Watch(self._recorder, nvml, uuid)
            self._watch.start()


class _Watch:
    """The thread and the one GPU it watches."""

    def __init__(self, recorder: Recorder, nvml: ModuleType, uuid: str) -> None:
        self._recorder = recorder
        self._nvml = nvml
        self._uuid = uuid
        self.samples = GpuSamples()
        self._measures: list[Measure] = [Throttling(), EccErrors(), RowRemapping(), NvlinkErrors(), self.samples]
        """Measures that NVML supports so far."""
        self._listens = True
        """True if NVML delivers XIDs."""
        self._refused: dict[str, str] = {}
        self._event_counts: Counter[str] = Counter()
        self._stopped = threading.Event()
        self._abandoned = False
        self._thread = OwnThread(self._run)
        self.state = "on"
        """The probe's state."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after a last poll: its cause may be what ended the training."""
        self._stopped.set()
        self._thread.join(JOIN_SECONDS)
        self._abandoned = True

    def _run(self) -> None:
        """Poll until stopped.

        Each turn passes a guard of its own, so that its cost counts in the step in which it runs.
        """
        name_this_thread()
        gpu = guard(self._open)()
        if gpu is None:
            return
        last, polled_ns, turn = False, None, guard(self._turn)
        while (self._measures or self._listens) and not last:
            last = self._stopped.is_set()
            polled_ns = turn(gpu, polled_ns)
            if polled_ns is None:
                break
        guard(gpu.close)()

    def _open(self) -> Gpu | None:
        try:
            gpu = Gpu.open(self._nvml, self._uuid)
        except Refusal as refusal:
            self.state = f"absent: NVML refuses: {refusal}"
            return None
        self._attempt(gpu, XIDS, gpu.listen)
        return gpu

    def _turn(self, gpu: Gpu, before_ns: int | None) -> int:
        """Poll, and wait for XIDs until the next poll is due. Returns the time of the poll."""
        polled_ns = self._poll(gpu, before_ns)
        while self._wait(gpu) and monotonic_ns() - polled_ns < POLL_SECONDS * 1e9:
            pass
        return polled_ns

    def _poll(self, gpu: Gpu, before_ns: int | None) -> int:
        """Poll all measures and return the time. The age of anything in the first poll is unknown."""
        now = monotonic_ns()
        delay = {} if before_ns is None else {"seen_within_seconds": round((now - before_ns) / 1e9, 3)}
        for measure in tuple(self._measures):
            for name, details in self._attempt(gpu, measure.name, partial(measure.poll, gpu, now)) or ():
                self._write_event(gpu, name, {**details, **delay})
        return now

    def _wait(self, gpu: Gpu) -> bool:
        """Wait for an XID, for a limited time. Returns whether to go on waiting."""
        stopped = self._stopped.is_set()
        if not self._listens:
            return not self._stopped.wait(WAIT_SECONDS)
        xid = self._attempt(gpu, XIDS, partial(gpu.next_xid, 0 if stopped else round(WAIT_SECONDS * 1e3)))
        if xid is not None:
            self._write_event(gpu, "gpu xid", {"xid": xid, "meaning": meaning(xid)})
        return xid is not None or not stopped

    def _attempt(self, gpu: Gpu, name: str, ask: Callable[[], T]) -> T | None:
        """Return the result of `ask`. If NVML refuses, return None and switch this measure off."""
        try:
            return ask()
        except Refusal as refusal:
            self._refused[name] = str(refusal)
            self._measures = [measure for measure in self._measures if measure.name != name]
            self._listens = self._listens and name != XIDS
            without = ", ".join(f"{name} ({why})" for name, why in self._refused.items())
            self.state = f"on, without {without}" if self._measures or self._listens else f"absent: no {without}"
            if gpu.is_gone(refusal) and not self._event_counts["gpu lost"]:
                self._write_event(gpu, "gpu lost", {"why": str(refusal)})
            return None

    def _write_event(self, gpu: Gpu, name: str, details: Mapping[str, object]) -> None:
        self._event_counts[name] += 1
        if self._event_counts[name] > MAX_EVENTS_PER_NAME or self._abandoned or not self._recorder.active:
            return
        shared = {"of": "the whole GPU, shared in MIG mode"} if gpu.is_shared else {}
        cut_off = {"no_more_are_told": True} if self._event_counts[name] == MAX_EVENTS_PER_NAME else {}
        self._recorder.event(name, {**details, "gpu": gpu.uuid, **shared, **cut_off})
