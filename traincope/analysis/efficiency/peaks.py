"""Peak rate of a rank: as the training declares it, from its device's data sheet, or measured on its processor."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from traincope.analysis.efficiency.declared_flops import positive
from traincope.plan.hardware import find_hardware
from traincope.plan.measured_peaks import COMMAND
from traincope.units import count

DECLARED = "as the training declares"
DATA_SHEET = "dense, from its data sheet"
MEASURED = "measured with {} of one process that runs alone (" + COMMAND + ")"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Dense FLOP/s of one rank."""

    device: str
    flops: Mapping[str, float]
    """dtype -> FLOP/s, for the requested dtypes whose rate is known."""
    source: str
    threads: int | None = None
    """Threads of a rank that multiplies on a processor; None on an accelerator, or if they are unknown."""

    @property
    def origin(self) -> str:
        """The device and the source of its peak."""
        return f"{self.device}: {self.source}"


def rank_peak(device: Mapping[str, Any], settings: Mapping[str, Any], *, dtypes: Collection[str]) -> Peak:
    """Peak by `settings["peak_flops"]` if given, otherwise by the device's data sheet, or as measured.

    The setting is FLOP/s per rank: one number, or a table by dtype. `device` is the rank's device as `rank.json`
    describes it.
    """
    name, threads = str(device.get("name", "this device")), device.get("threads")
    threads = threads if isinstance(threads, int) else None
    declared = settings.get("peak_flops")
    if declared is not None:
        table = declared if isinstance(declared, Mapping) else dict.fromkeys(dtypes, declared)
        flops = {dtype: positive(table.get(dtype)) for dtype in dtypes}
        source = str(settings.get("peak_source", DECLARED))
    elif (spec := find_hardware(name)) is not None:
        flops, source = {dtype: spec.peak(dtype) for dtype in dtypes}, DATA_SHEET
    else:
        measured = device.get("measured_flops")
        table = measured if isinstance(measured, Mapping) else {}
        flops = {dtype: positive(table.get(dtype)) for dtype in dtypes}
        source = MEASURED.format(count(threads or 1, "thread"))
    known = {dtype: value for dtype, value in flops.items() if value is not None}
    return Peak(device=name, flops=known, source=source, threads=threads)


def memory_bandwidth(device: Mapping[str, Any]) -> float | None:
    """Bytes per second of the memory of a rank's device, by its data sheet; None if it is not listed."""
    spec = find_hardware(str(device.get("name", "")))
    return None if spec is None else spec.bytes_per_second


def why_unknown(peak: Peak, dtypes: Collection[str], *, remedy: str) -> str | None:
    """Sentence that names the dtypes without a known peak; None if all are known."""
    missing = sorted(set(dtypes) - set(peak.flops))
    if not missing:
        return None
    if peak.threads is not None:
        remedy = f"run {COMMAND} --threads {peak.threads} on its host, or {remedy}"
    return f"the peak of {peak.device} for {', '.join(missing)} is unknown; {remedy}"
