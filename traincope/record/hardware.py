"""Faults of the GPU this process trains on, as events: slowed clocks, ECC errors, remapped rows, XIDs; and readings.

A thread of ours asks NVML and the training's thread never does; CUDA is neither initialised nor
called into from that thread. XIDs come by themselves, everything else is looked at every
`LOOK_SECONDS`, so that such an event happened up to `seen_within_seconds` before it was written.

Readings (power, clock, temperature, utilization) are written by the training's thread between steps, the latest
ones: records of another thread would hide that the training hangs.
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
from traincope.record.gpus import gpu_in_use
from traincope.record.guard import guard
from traincope.record.measures import EccErrors, Measure, Readings, RowRemapping, Throttling
from traincope.record.nvml import LIBRARY, Gpu, Refusal, has_driver, load
from traincope.record.recorder import Recorder
from traincope.record.xids import meaning

LOOK_SECONDS = 2.0
WAIT_SECONDS = 0.25
"""How long the thread waits for an XID before it sees whether it is to end: the end waits for it no longer."""
JOIN_SECONDS = 1.0
"""A driver that hangs delays the end by so much; its thread is then left behind."""
MOST = 1_000
"""Events of one name in a run; the last one says that it is."""

XIDS = "XIDs"
NO_GPU = "off: nothing to watch: no GPU is in use"
NO_DRIVER = f"off: nothing to watch: there is no NVIDIA driver here ({LIBRARY})"


T = TypeVar("T")


def _gpu_of_torch() -> str | None:
    torch = sys.modules.get("torch")
    return None if torch is None else gpu_in_use(torch.cuda)


class Hardware:
    """Hook on nothing of torch: it begins at the first boundary of steps at which a GPU is in use."""

    name = "hardware"
    level = 0

    def __init__(self, find_gpu: Callable[[], str | None] = _gpu_of_torch) -> None:
        self._find_gpu = find_gpu
        self._watch: _Watch | None = None
        self._nvml: ModuleType | None = None
        self._asked_ns: int | None = None
        """When it was last asked which GPU is in use."""
        self._said = ""

    def install(self, recorder: Recorder) -> None:
        """Raises FileNotFoundError or ImportError where an NVIDIA driver is there, and a part to ask it is not."""
        self._recorder = recorder
        if not has_driver():
            recorder.probes[self.name] = NO_DRIVER
            return
        self._nvml = load()
        recorder.probes[self.name] = self._said = NO_GPU
        recorder.between_steps(self._between_steps)

    def remove(self) -> None:
        self._nvml = None
        if self._watch is not None:
            self._watch.stop()
            self._recorder.probes[self.name] = self._watch.state
            self._watch = None

    def _between_steps(self) -> None:
        """Only on this thread `rank.json` is written anew, when there is news for it."""
        if self._nvml is None:
            return
        if self._watch is None:
            self._begin(self._nvml)
            return
        self._write(self._watch.readings.take())
        if self._watch.state != self._said:
            self._recorder.probes[self.name] = self._said = self._watch.state
            self._recorder.note()

    def _write(self, readings: Mapping[str, int]) -> None:
        now, recorder = monotonic_ns(), self._recorder
        for name, value in readings.items():
            recorder.main.write(Kind.GPU, now, now, Phase.NONE, recorder.names.intern(name), value=value)

    def _begin(self, nvml: ModuleType) -> None:
        now = monotonic_ns()
        if self._asked_ns is not None and now - self._asked_ns < LOOK_SECONDS * 1e9:
            return
        self._asked_ns = now
        uuid = self._find_gpu()
        if uuid is not None:
            self._watch = _Watch(self._recorder, nvml, uuid)
            self._watch.start()


class _Watch:
    """The thread, and the one GPU it watches."""

    def __init__(self, recorder: Recorder, nvml: ModuleType, uuid: str) -> None:
        self._recorder = recorder
        self._nvml = nvml
        self._uuid = uuid
        self.readings = Readings()
        self._measures: list[Measure] = [Throttling(), EccErrors(), RowRemapping(), self.readings]
        """Those that NVML has not refused yet."""
        self._listens = True
        """Whether it has not refused XIDs."""
        self._refused: dict[str, str] = {}
        self._told: Counter[str] = Counter()
        self._stopped = threading.Event()
        self._left_behind = False
        self._thread = threading.Thread(target=self._run, name="traincope-hardware", daemon=True)
        self.state = "on"
        """What the probe says."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The thread looks a last time, for what ended the training may be what it watches."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=JOIN_SECONDS)
        self._left_behind = True

    def _run(self) -> None:
        """Every turn passes a guard of its own: what it costs is then its step's, and not the run's last one's."""
        gpu = guard(self._open)()
        if gpu is None:
            return
        last, looked_ns, turn = False, None, guard(self._turn)
        while (self._measures or self._listens) and not last:
            last = self._stopped.is_set()
            looked_ns = turn(gpu, looked_ns)
            if looked_ns is None:
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
        """Look, and wait for XIDs until it is time to look again; returns when it looked."""
        looked_ns = self._look(gpu, before_ns)
        while self._wait(gpu) and monotonic_ns() - looked_ns < LOOK_SECONDS * 1e9:
            pass
        return looked_ns

    def _look(self, gpu: Gpu, before_ns: int | None) -> int:
        """Returns when. Nothing says how long ago that began which the first look finds."""
        now = monotonic_ns()
        seen = {} if before_ns is None else {"seen_within_seconds": round((now - before_ns) / 1e9, 3)}
        for measure in tuple(self._measures):
            for name, details in self._attempt(gpu, measure.name, partial(measure.look, gpu, now)) or ():
                self._tell(gpu, name, {**details, **seen})
        return now

    def _wait(self, gpu: Gpu) -> bool:
        """Until an XID has come, or a while; returns whether to go on waiting."""
        stopped = self._stopped.is_set()
        if not self._listens:
            return not self._stopped.wait(WAIT_SECONDS)
        xid = self._attempt(gpu, XIDS, partial(gpu.next_xid, 0 if stopped else round(WAIT_SECONDS * 1e3)))
        if xid is not None:
            self._tell(gpu, "gpu xid", {"xid": xid, "meaning": meaning(xid)})
        return xid is not None or not stopped

    def _attempt(self, gpu: Gpu, name: str, ask: Callable[[], T]) -> T | None:
        """What `ask` returns; where NVML refuses, None, and this measure is off from now on."""
        try:
            return ask()
        except Refusal as refusal:
            self._refused[name] = str(refusal)
            self._measures = [measure for measure in self._measures if measure.name != name]
            self._listens = self._listens and name != XIDS
            without = ", ".join(f"{name} ({why})" for name, why in self._refused.items())
            self.state = f"on, without {without}" if self._measures or self._listens else f"absent: no {without}"
            if gpu.is_gone(refusal) and not self._told["gpu lost"]:
                self._tell(gpu, "gpu lost", {"why": str(refusal)})
            return None

    def _tell(self, gpu: Gpu, name: str, details: Mapping[str, object]) -> None:
        self._told[name] += 1
        if self._told[name] > MOST or self._left_behind or not self._recorder.active:
            return
        shared = {"of": "the whole GPU, shared in MIG mode"} if gpu.is_shared else {}
        cut_off = {"no_more_are_told": True} if self._told[name] == MOST else {}
        self._recorder.event(name, {**details, "gpu": gpu.uuid, **shared, **cut_off})
