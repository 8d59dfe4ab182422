"""A snapshot of torch's allocator on GPUs, as an import reduces it: `memory-000.json` in the directory of a rank."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from traincope.errors import RunDirectoryError, VersionError
from traincope.store.lines import parse

VERSION = 1
"""Version of the file's layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSite:
    """The live allocations of one place in the training's code."""

    place: str
    """File, line and function of the innermost frame outside of torch; empty if the allocations have no stack."""
    stack: tuple[str, ...]
    """Frames from the innermost on, as far as they are kept."""
    part: str
    """The part of torch that allocated: `optimizer`, `backward`, `distributed`, `model`, or empty without a stack."""
    bytes: int
    """Sizes of its blocks, which are rounded up."""
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The allocator of one GPU, in bytes. Reserved = allocated + awaiting free + inactive."""

    device: int
    segments: int
    """Number of pieces that the allocator took from CUDA."""
    expandable_segments: int
    reserved_bytes: int
    allocated_bytes: int
    """Blocks that tensors use."""
    requested_bytes: int
    """Bytes that were asked for of those; the rest is rounding."""
    awaiting_free_bytes: int
    """Blocks that were freed, and that another stream may still use."""
    inactive_bytes: int
    """Free blocks: fragmentation, as far as no request fits into them."""
    largest_inactive_bytes: int
    """The largest request that fits without new memory."""
    sites: tuple[AllocationSite, ...]
    """Live allocations by the training's line, those with most bytes first."""
    times_us: tuple[int, ...]
    """Times of the history since its first entry; empty if the snapshot has none."""
    history_bytes: tuple[int, ...]
    """Allocated bytes from each of these times on. Of several entries between two times, the largest."""
    peak_bytes: int | None
    """Largest allocation in the history; None without one."""
    out_of_memory_bytes: tuple[int, ...]
    """Requests that failed, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """One snapshot."""

    source: str
    """Name of the imported file."""
    devices: tuple[DeviceMemory, ...]


def write_snapshot(path: Path, snapshot: MemorySnapshot) -> None:
    """Raises OSError if the file cannot be written."""
    path.write_text(json.dumps({"version": VERSION, **asdict(snapshot)}), encoding="utf-8")


def read_snapshot(path: Path) -> MemorySnapshot:
    """Raises VersionError for an unknown layout, RunDirectoryError if it is damaged."""
    raw = parse(path.read_text(encoding="utf-8", errors="replace"))
    version = raw.get("version") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or version != VERSION:
        raise VersionError(f"{path} has layout {version}, this traincope reads {VERSION}; import the snapshot again")
    try:
        return MemorySnapshot(source=str(raw["source"]), devices=tuple(map(_device, raw["devices"])))
    except (KeyError, TypeError, ValueError) as error:
        raise RunDirectoryError(f"{path} is damaged ({error!r}); import the snapshot again") from error


def _device(raw: Mapping[str, Any]) -> DeviceMemory:
    lists = {name: tuple(raw[name]) for name in ("times_us", "history_bytes", "out_of_memory_bytes")}
    sites = tuple(AllocationSite(**{**site, "stack": tuple(site["stack"])}) for site in raw["sites"])
    return DeviceMemory(**{**raw, **lists, "sites": sites})
