"""Measured peaks of processors, which no data sheet gives for a number of threads, in the user's cache directory.

`traincope doctor --measure-peak` writes it. An entry holds for one host, its processor and a number of threads.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from traincope.whole_files import write_whole

COMMAND = "traincope doctor --measure-peak"
FILE = Path("traincope") / "peaks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPeak:
    """Dense FLOP/s of matrix products of one process, which runs alone."""

    host: str
    device: str
    """The processor's model, as the recorder names it."""
    threads: int
    """Threads with which torch multiplies."""
    flops: dict[str, float]
    """dtype -> FLOP/s."""


def cache_file(environment: Mapping[str, str]) -> Path | None:
    """Path of the file, by the XDG base directory specification; None without a home directory."""
    cache, home = environment.get("XDG_CACHE_HOME", ""), environment.get("HOME", "")
    if cache.startswith("/"):
        return Path(cache) / FILE
    return Path(home) / ".cache" / FILE if home.startswith("/") else None


def measured_flops(host: str, device: Mapping[str, Any]) -> dict[str, float] | None:
    """Measured FLOP/s by dtype of a rank on `host`, whose `rank.json` describes `device`; None if not measured."""
    path = cache_file(os.environ)
    for peak in () if path is None else read_peaks(path):
        if (peak.host, peak.device, peak.threads) == (host, device.get("name"), device.get("threads")):
            return peak.flops
    return None


def read_peaks(path: Path) -> tuple[MeasuredPeak, ...]:
    """Read all entries. A file that is absent or damaged has none: it can be measured again."""
    try:
        return tuple(_entry(raw) for raw in json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return ()


def keep_peak(path: Path, peak: MeasuredPeak) -> None:
    """Add an entry in place of an earlier one of the same host, processor and threads. Raises OSError."""
    others = (each for each in read_peaks(path) if _key(each) != _key(peak))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps([asdict(each) for each in (*others, peak)], indent=2) + "\n").encode())


def _key(peak: MeasuredPeak) -> tuple[str, str, int]:
    return peak.host, peak.device, peak.threads


def _entry(raw: Mapping[str, Any]) -> MeasuredPeak:
    """Decode an entry. Raises ValueError for a rate that is not positive."""
    flops = {str(dtype): float(rate) for dtype, rate in raw["flops"].items()}
    if not all(0 < rate < float("inf") for rate in flops.values()):
        raise ValueError("a rate is not positive")
    return MeasuredPeak(host=str(raw["host"]), device=str(raw["device"]), threads=int(raw["threads"]), flops=flops)
