"""Peak rate of a rank: as the training declares it, or from its device's data sheet."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from traincope.analysis.efficiency.declared_flops import positive
from traincope.plan.hardware import find_hardware

DECLARED = "as the training declares"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Dense FLOP/s of one rank."""

    device: str
    flops: Mapping[str, float]
    """dtype -> FLOP/s, for the requested dtypes whose rate is known."""
    source: str


def rank_peak(device: Mapping[str, Any], settings: Mapping[str, Any], *, dtypes: Collection[str]) -> Peak:
    """Peak by `settings["peak_flops"]` if given, otherwise by the device's data sheet.

    The setting is FLOP/s per rank: one number, or a table by dtype. `device` is the rank's device as `rank.json`
    describes it.
    """
    name = str(device.get("name", "this device"))
    declared = settings.get("peak_flops")
    if declared is not None:
        table = declared if isinstance(declared, Mapping) else dict.fromkeys(dtypes, declared)
        flops = {dtype: positive(table.get(dtype)) for dtype in dtypes}
        source = str(settings.get("peak_source", DECLARED))
    else:
        spec = find_hardware(name)
        flops = {dtype: spec.peak(dtype) for dtype in dtypes} if spec is not None else {}
        source = "dense, from its data sheet"
    return Peak(device=name, flops={dtype: value for dtype, value in flops.items() if value is not None}, source=source)


def memory_bandwidth(device: Mapping[str, Any]) -> float | None:
    """Bytes per second of the memory of a rank's device, by its data sheet; None if it is not listed."""
    spec = find_hardware(str(device.get("name", "")))
    return None if spec is None else spec.bytes_per_second


def why_unknown(peak: Peak, dtypes: Collection[str], *, remedy: str) -> str | None:
    """Sentence that names the dtypes without a known peak; None if all are known."""
    missing = sorted(set(dtypes) - set(peak.flops))
    if not missing:
        return None
    return f"the peak of {peak.device} for {', '.join(missing)} is unknown; {remedy}"
