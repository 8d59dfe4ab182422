"""How fast a rank could multiply: as the training told, or as its device's data sheet says."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from traincope.analysis.told import positive
from traincope.plan.hardware import find

TOLD = "as the training told"
REMEDY = "tell run.describe(peak_flops=...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Dense FLOP/s of one rank."""

    device: str
    flops: Mapping[str, float]
    """dtype -> FLOP/s, of those dtypes that were asked for and are known."""
    source: str


def rank_peak(device: Mapping[str, Any], settings: Mapping[str, Any], *, dtypes: Collection[str]) -> Peak:
    """`settings["peak_flops"]` is FLOP/s of a rank, one number or a table by dtype, and wins.

    `device` is what `rank.json` says of the rank's own.
    """
    name = str(device.get("name", "this device"))
    told = settings.get("peak_flops")
    if told is not None:
        table = told if isinstance(told, Mapping) else dict.fromkeys(dtypes, told)
        flops = {dtype: positive(table.get(dtype)) for dtype in dtypes}
        source = str(settings.get("peak_source", TOLD))
    else:
        spec = find(name)
        flops = {dtype: spec.peak(dtype) for dtype in dtypes} if spec is not None else {}
        source = "dense, from its data sheet"
    return Peak(device=name, flops={dtype: value for dtype, value in flops.items() if value is not None}, source=source)


def why_unknown(peak: Peak, dtypes: Collection[str]) -> str | None:
    """What is missing to say how long these dtypes take at peak."""
    missing = sorted(set(dtypes) - set(peak.flops))
    if not missing:
        return None
    return f"the peak of {peak.device} for {', '.join(missing)} is not known; {REMEDY}"
