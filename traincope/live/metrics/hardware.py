"""Metrics of the GPUs of the node's ranks, by NVML, and the thread that reads hardware at each look of the agent."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Protocol, TypeVar

from traincope.live.metrics.series import SeriesKey, series_key
from traincope.live.window import RankState, RankStatus
from traincope.metrics import catalogue
from traincope.metrics.metric import Metric
from traincope.record.gpu.measures import SLOWDOWN_REASONS
from traincope.record.gpu.nvml import Gpu, Refusal, has_driver, load

logger = logging.getLogger(__name__)

UUID = "uuid"
"""Key of the GPU's UUID in `rank.json`."""
T = TypeVar("T")

STALE_NS = 60_000_000_000
"""Maximum age of values. Older ones are not exported: the driver hangs."""
JOIN_SECONDS = 1.0
MEGA, MILLI = 1e6, 1e-3


@dataclass(slots=True, kw_only=True)
class _WatchedGpu:
    """One GPU, and the state of its queries."""

    gpu: Gpu
    refused: set[str] = field(default_factory=set)
    """Metrics that NVML refuses for this GPU. They are not queried again."""
    seen_reasons: set[str] = field(default_factory=set)
    """Throttling reasons that were active at least once."""


class Gpus:
    """GPUs of the node. Each is opened when its rank uses it. Without a driver there are no values."""

    def __init__(self) -> None:
        self._watched: dict[str, _WatchedGpu | None] = {}
        """UUID -> GPU; None if NVML does not know it."""

    def is_needed(self, ranks: Sequence[RankStatus]) -> bool:
        """Return whether a rank has named its GPU."""
        return any(UUID in rank.info.device for rank in ranks)

    def look(self, ranks: Sequence[RankStatus]) -> Mapping[SeriesKey, float]:
        """Read the values of all GPUs whose rank is alive."""
        values: dict[SeriesKey, float] = {}
        for rank in ranks:
            uuid = rank.info.device.get(UUID)
            watched = self._watch(uuid) if isinstance(uuid, str) and rank.state is RankState.ALIVE else None
            if watched is not None:
                values |= dict(_gpu_values(watched, rank.rank))
        return values

    def close(self) -> None:
        for watched in self._watched.values():
            if watched is not None:
                watched.gpu.close()
        self._watched.clear()

    def _watch(self, uuid: str) -> _WatchedGpu | None:
        if uuid not in self._watched:
            self._watched[uuid] = _open(uuid)
        return self._watched[uuid]


def _open(uuid: str) -> _WatchedGpu | None:
    try:
        return _WatchedGpu(gpu=Gpu.open(load(), uuid)) if has_driver() else None
    except (ImportError, FileNotFoundError, Refusal) as error:
        logger.warning("no metrics of GPU %s: %s", uuid, error)
        return None


def _gpu_values(watched: _WatchedGpu, rank: int) -> Iterator[tuple[SeriesKey, float]]:
    gpu, labels = watched.gpu, (rank, watched.gpu.uuid)
    ecc = _query(watched, catalogue.GPU_ECC, gpu.ecc_errors)
    for kind, count in zip(("corrected", "uncorrected"), ecc or (), strict=False):
        yield series_key(catalogue.GPU_ECC, *labels, kind), count
    for metric, read, unit in (
        (catalogue.GPU_POWER, gpu.power_milliwatts, MILLI),
        (catalogue.GPU_CLOCK, gpu.sm_clock_mhz, MEGA),
        (catalogue.GPU_TEMPERATURE, gpu.temperature_celsius, 1),
        (catalogue.GPU_NVLINK, gpu.nvlink_errors, 1),
    ):
        value = _query(watched, metric, read)
        if value is not None:
            yield series_key(metric, *labels), value * unit
    used = None if gpu.is_shared else _query(watched, catalogue.GPU_ENERGY, gpu.energy_millijoules)
    if used is not None:
        yield series_key(catalogue.GPU_ENERGY, gpu.uuid), used * MILLI  # ranks that share a GPU share its energy
    bits = _query(watched, catalogue.GPU_THROTTLED, gpu.clock_reasons)
    if bits is not None:
        now = {reason for bit, reason in SLOWDOWN_REASONS.items() if bits & bit}
        watched.seen_reasons |= now
        for reason in sorted(watched.seen_reasons):
            yield series_key(catalogue.GPU_THROTTLED, *labels, reason), float(reason in now)


def _query(watched: _WatchedGpu, metric: Metric, read: Callable[[], T]) -> T | None:
    """Run one query; None if NVML refuses it, now or before. A lost GPU may answer again later."""
    if metric.name in watched.refused:
        return None
    try:
        return read()
    except Refusal as refusal:
        if not watched.gpu.is_gone(refusal):
            watched.refused.add(metric.name)
        return None


class Readings(Protocol):
    """Something of the node that is read at each look of the agent."""

    def is_needed(self, ranks: Sequence[RankStatus]) -> bool:
        """Return whether there is something to read. Then the thread starts."""

    def look(self, ranks: Sequence[RankStatus]) -> Mapping[SeriesKey, float]: ...

    def close(self) -> None: ...


class Watcher:
    """Thread that reads hardware. A driver or card that hangs must not stop the agent."""

    def __init__(self, readings: Readings, name: str) -> None:
        self._readings, self._name = readings, name
        self._ranks: Sequence[RankStatus] = ()
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._latest: tuple[int, Mapping[SeriesKey, float]] = (0, {})

    def request(self, ranks: Sequence[RankStatus]) -> None:
        """Request new values for these ranks. Returns at once."""
        if self._thread is None and self._readings.is_needed(ranks):
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._ranks = ranks
        self._wake.set()

    def latest(self) -> Mapping[SeriesKey, float]:
        """Latest values; empty if they are older than `STALE_NS`."""
        at_ns, values = self._latest
        return values if monotonic_ns() - at_ns < STALE_NS else {}

    def stop(self) -> None:
        """Stop the thread. A hanging driver delays this by `JOIN_SECONDS` and keeps the thread."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=JOIN_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait()
            self._wake.clear()
            values = self._readings.look(self._ranks)
            self._latest = (monotonic_ns(), values)
        self._readings.close()
