"""What NVML says of the GPUs that the node's ranks train on, asked by the agent once a pass.

A thread of its own asks, for a driver that hangs must not keep the agent from looking at its ranks.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import TypeVar

from traincope import metrics
from traincope.live.series import Series, series
from traincope.live.window import RankState, RankStatus
from traincope.metrics import Metric
from traincope.record.measures import SLOWING
from traincope.record.nvml import Gpu, Refusal, has_driver, load

logger = logging.getLogger(__name__)

UUID = "uuid"
"""Where `rank.json` has it of a rank's GPU."""
T = TypeVar("T")

STALE_NS = 60_000_000_000
"""What was told longer ago is not told again: the driver hangs."""
JOIN_SECONDS = 1.0
MEGA, MILLI = 1e6, 1e-3


@dataclass(slots=True, kw_only=True)
class _Watched:
    """One GPU."""

    gpu: Gpu
    refused: set[str] = field(default_factory=set)
    """Metrics that NVML does not tell of it; they are not asked for again."""
    slowed: set[str] = field(default_factory=set)
    """Reasons that were ever seen."""


class Gpus:
    """Opens each GPU when its rank has used it; where there is no driver it says nothing."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched | None] = {}
        """UUID -> the GPU, or None: NVML does not know it."""

    def look(self, ranks: Sequence[RankStatus]) -> Mapping[Series, float]:
        """The GPUs of the ranks that are alive."""
        told: dict[Series, float] = {}
        for rank in ranks:
            uuid = rank.info.device.get(UUID)
            watched = self._watch(uuid) if isinstance(uuid, str) and rank.state is RankState.ALIVE else None
            if watched is not None:
                told |= dict(_told(watched, rank.rank))
        return told

    def close(self) -> None:
        for watched in self._watched.values():
            if watched is not None:
                watched.gpu.close()
        self._watched.clear()

    def _watch(self, uuid: str) -> _Watched | None:
        if uuid not in self._watched:
            self._watched[uuid] = _open(uuid)
        return self._watched[uuid]


def _open(uuid: str) -> _Watched | None:
    try:
        return _Watched(gpu=Gpu.open(load(), uuid)) if has_driver() else None
    except (ImportError, FileNotFoundError, Refusal) as error:
        logger.warning("nothing is said of GPU %s: %s", uuid, error)
        return None


def _told(watched: _Watched, rank: int) -> Iterator[tuple[Series, float]]:
    gpu, labels = watched.gpu, (rank, watched.gpu.uuid)
    ecc = _ask(watched, metrics.GPU_ECC, gpu.ecc_errors)
    for kind, count in zip(("corrected", "uncorrected"), ecc or (), strict=False):
        yield series(metrics.GPU_ECC, *labels, kind), count
    for metric, ask, unit in (
        (metrics.GPU_POWER, gpu.power_milliwatts, MILLI),
        (metrics.GPU_CLOCK, gpu.sm_clock_mhz, MEGA),
        (metrics.GPU_TEMPERATURE, gpu.temperature_celsius, 1),
        (metrics.GPU_NVLINK, gpu.nvlink_errors, 1),
    ):
        value = _ask(watched, metric, ask)
        if value is not None:
            yield series(metric, *labels), value * unit
    bits = _ask(watched, metrics.GPU_THROTTLED, gpu.clock_reasons)
    if bits is not None:
        now = {reason for bit, reason in SLOWING.items() if bits & bit}
        watched.slowed |= now
        for reason in sorted(watched.slowed):
            yield series(metrics.GPU_THROTTLED, *labels, reason), float(reason in now)


def _ask(watched: _Watched, metric: Metric, ask: Callable[[], T]) -> T | None:
    """None where NVML refuses, now or before; of a GPU that is lost it may tell again."""
    if metric.name in watched.refused:
        return None
    try:
        return ask()
    except Refusal as refusal:
        if not watched.gpu.is_gone(refusal):
            watched.refused.add(metric.name)
        return None


class Watch:
    """The thread; it begins with the first rank that names its GPU."""

    def __init__(self) -> None:
        self._gpus = Gpus()
        self._wanted: Sequence[RankStatus] = ()
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._told: tuple[int, Mapping[Series, float]] = (0, {})

    def ask(self, ranks: Sequence[RankStatus]) -> None:
        """Once more, of these; returns at once."""
        if self._thread is None and any(UUID in rank.info.device for rank in ranks):
            self._thread = threading.Thread(target=self._run, name="traincope-gpus", daemon=True)
            self._thread.start()
        self._wanted = ranks
        self._wake.set()

    def latest(self) -> Mapping[Series, float]:
        """What was told last; nothing where that is long ago."""
        at_ns, told = self._told
        return told if monotonic_ns() - at_ns < STALE_NS else {}

    def stop(self) -> None:
        """A driver that hangs delays it by `JOIN_SECONDS`, and keeps the thread."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait()
            self._wake.clear()
            told = self._gpus.look(self._wanted)
            self._told = (monotonic_ns(), told)
        self._gpus.close()
