"""Measures of a GPU's hardware. Each keeps its last reading and returns only the changes."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from time import monotonic_ns
from typing import NamedTuple, Protocol

from traincope.events import GPU_ENERGY, GPU_SAMPLE_UNITS
from traincope.record.gpu.nvml import Gpu, Refusal, RemappedRows

GpuEvent = tuple[str, dict[str, object]]
"""An event's name and details."""

SLOWDOWN_REASONS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of `nvmlClocksEventReason*` (nvml.h) that slow the clocks down. The other bits mean lack of demand."""


class Measure(Protocol):
    """A quantity of a GPU that is polled."""

    name: str

    def poll(self, gpu: Gpu, now_ns: int) -> list[GpuEvent]:
        """Return the events since the last poll. Raises Refusal."""


class Throttling:
    """Throttling: each reason lasts from the first poll that shows it to the first poll that does not."""

    name = "throttling"

    def __init__(self) -> None:
        self._since_ns: dict[str, int] = {}

    def poll(self, gpu: Gpu, now_ns: int) -> list[GpuEvent]:
        bits = gpu.clock_reasons()
        reasons = [reason for bit, reason in SLOWDOWN_REASONS.items() if bits & bit]
        events: list[GpuEvent] = [
            ("gpu not throttled", {"reasons": ended, "lasted_seconds": (now_ns - since_ns) / 1e9})
            for since_ns, ended in self._ended(reasons)
        ]
        new = [reason for reason in reasons if reason not in self._since_ns]
        self._since_ns |= dict.fromkeys(new, now_ns)
        return [*events, ("gpu throttled", {"reasons": new})] if new else events

    def _ended(self, reasons: list[str]) -> Iterator[tuple[int, list[str]]]:
        """Yield the ended reasons, grouped by their start."""
        ended: dict[int, list[str]] = defaultdict(list)
        for reason in [reason for reason in self._since_ns if reason not in reasons]:
            ended[self._since_ns.pop(reason)].append(reason)
        yield from ended.items()


class EccErrors:
    """ECC errors: growth of the counters. A counter that has shrunk was reset and starts again."""

    name = "ECC errors"

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def poll(self, gpu: Gpu, _now_ns: int) -> list[GpuEvent]:
        counts = gpu.ecc_errors()
        before, self._before = self._before or counts, counts
        corrected, uncorrected = (max(now - earlier, 0) for now, earlier in zip(counts, before, strict=True))
        if not corrected and not uncorrected:
            return []
        return [("gpu ecc error", {"corrected": corrected, "uncorrected": uncorrected})]


class RowRemapping:
    """Row remapping: reported if it is bad at the first poll, and at every change."""

    name = "row remapping"

    def __init__(self) -> None:
        self._before: RemappedRows | None = None

    def poll(self, gpu: Gpu, _now_ns: int) -> list[GpuEvent]:
        rows = gpu.remapped_rows()
        before, self._before = self._before, rows
        is_news = rows.pending or rows.failure if before is None else rows != before
        return [("gpu rows remapped", rows._asdict())] if is_news else []


class NvlinkErrors:
    """NVLink errors: growth of the counters. A GPU without NVLinks has none."""

    name = "NVLink errors"

    def __init__(self) -> None:
        self._before: int | None = None

    def poll(self, gpu: Gpu, _now_ns: int) -> list[GpuEvent]:
        try:
            count = gpu.nvlink_errors()
        except Refusal as refusal:
            if gpu.is_gone(refusal):
                raise
            return []
        before, self._before = self._before, count
        return [("gpu nvlink errors", {"errors": count - before})] if before is not None and count > before else []


GAUGES: tuple[Callable[[Gpu], int], ...] = (
    Gpu.power_milliwatts,
    Gpu.sm_clock_mhz,
    Gpu.temperature_celsius,
    Gpu.utilization_percent,
)
"""Getters of the quantities in GPU_SAMPLE_UNITS, in their order."""


class GpuReading(NamedTuple):
    """Samples that were read at the same time."""

    at_ns: int
    samples: Mapping[str, int]


class GpuSamples:
    """Samples of energy, power, clock, temperature and utilization.

    They are not events: the training's thread writes the latest. In MIG mode the energy is not sampled: that of
    the whole GPU is not this process's own.
    """

    name = "readings"

    def __init__(self) -> None:
        self._gauges = {GPU_ENERGY: Gpu.energy_millijoules, **dict(zip(GPU_SAMPLE_UNITS, GAUGES, strict=True))}
        """Getters that the GPU supports: in MIG mode it reports no utilization."""
        self._latest = GpuReading(0, {})

    def poll(self, gpu: Gpu, _now_ns: int) -> list[GpuEvent]:
        if gpu.is_shared:
            self._gauges.pop(GPU_ENERGY, None)
        at_ns = monotonic_ns()
        samples = {name: self._ask(gpu, name) for name in tuple(self._gauges)}
        self._latest = GpuReading(at_ns, {name: value for name, value in samples.items() if value is not None})
        return []

    def take(self) -> GpuReading:
        """Return the samples since the last call."""
        latest, self._latest = self._latest, GpuReading(0, {})
        return latest

    def _ask(self, gpu: Gpu, name: str) -> int | None:
        """Raises Refusal if the GPU itself is lost."""
        try:
            return self._gauges[name](gpu)
        except Refusal as refusal:
            if gpu.is_gone(refusal):
                raise
            del self._gauges[name]
            return None
