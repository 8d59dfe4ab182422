"""What is new about a GPU each time one looks: a measure keeps what it saw before."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from traincope.events import GPU_READINGS
from traincope.record.nvml import Gpu, Refusal, RemappedRows

Happening = tuple[str, dict[str, object]]
"""An event's name and details."""

SLOWING = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of `nvmlClocksEventReason*` (nvml.h) that cost speed; the others say that nobody asked for more."""


class Measure(Protocol):
    """Something of a GPU that is looked at now and then."""

    name: str

    def look(self, gpu: Gpu, now_ns: int) -> list[Happening]:
        """What happened since the last look. Raises Refusal."""


class Throttling:
    """Each reason from the look that first sees it to the first that does not."""

    name = "throttling"

    def __init__(self) -> None:
        self._since_ns: dict[str, int] = {}

    def look(self, gpu: Gpu, now_ns: int) -> list[Happening]:
        bits = gpu.clock_reasons()
        reasons = [reason for bit, reason in SLOWING.items() if bits & bit]
        happened: list[Happening] = [
            ("gpu not throttled", {"reasons": over, "lasted_seconds": (now_ns - since_ns) / 1e9})
            for since_ns, over in self._over(reasons)
        ]
        new = [reason for reason in reasons if reason not in self._since_ns]
        self._since_ns |= dict.fromkeys(new, now_ns)
        return [*happened, ("gpu throttled", {"reasons": new})] if new else happened

    def _over(self, reasons: list[str]) -> Iterator[tuple[int, list[str]]]:
        """Those that began together are told together."""
        over: dict[int, list[str]] = defaultdict(list)
        for reason in [reason for reason in self._since_ns if reason not in reasons]:
            over[self._since_ns.pop(reason)].append(reason)
        yield from over.items()


class EccErrors:
    """Growth of the counters; one that is smaller than before was reset and starts anew."""

    name = "ECC errors"

    def __init__(self) -> None:
        self._before: tuple[int, int] | None = None

    def look(self, gpu: Gpu, _now_ns: int) -> list[Happening]:
        counts = gpu.ecc_errors()
        before, self._before = self._before or counts, counts
        corrected, uncorrected = (max(now - then, 0) for now, then in zip(counts, before, strict=True))
        if not corrected and not uncorrected:
            return []
        return [("gpu ecc error", {"corrected": corrected, "uncorrected": uncorrected})]


class RowRemapping:
    """Its state where it is bad at the first look, and whenever it changes."""

    name = "row remapping"

    def __init__(self) -> None:
        self._before: RemappedRows | None = None

    def look(self, gpu: Gpu, _now_ns: int) -> list[Happening]:
        rows = gpu.remapped_rows()
        before, self._before = self._before, rows
        is_news = rows.pending or rows.failure if before is None else rows != before
        return [("gpu rows remapped", rows._asdict())] if is_news else []


GAUGES: tuple[Callable[[Gpu], int], ...] = (
    Gpu.power_milliwatts,
    Gpu.sm_clock_mhz,
    Gpu.temperature_celsius,
    Gpu.utilization_percent,
)
"""What is asked for each of GPU_READINGS, in their order."""


class Readings:
    """Power, clock, temperature, utilization: no event, the training's thread writes the latest of them down."""

    name = "readings"

    def __init__(self) -> None:
        self._gauges = dict(zip(GPU_READINGS, GAUGES, strict=True))
        """Those that the GPU has not refused: in MIG mode it tells no utilization."""
        self._latest: Mapping[str, int] = {}

    def look(self, gpu: Gpu, _now_ns: int) -> list[Happening]:
        told = {name: self._ask(gpu, name) for name in tuple(self._gauges)}
        self._latest = {name: value for name, value in told.items() if value is not None}
        return []

    def take(self) -> Mapping[str, int]:
        """What was read since it was last taken."""
        taken, self._latest = self._latest, {}
        return taken

    def _ask(self, gpu: Gpu, name: str) -> int | None:
        """Raises Refusal where the GPU itself is gone."""
        try:
            return self._gauges[name](gpu)
        except Refusal as refusal:
            if gpu.is_gone(refusal):
                raise
            del self._gauges[name]
            return None
