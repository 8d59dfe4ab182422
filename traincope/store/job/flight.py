"""torch's flight recorder of one rank: which collectives it issued last in each group, and which of them are complete.

The format is that of `torch._C._distributed_c10d._dump_fr_trace_json` (torch 2.6 and later). On gloo an entry is
complete once it is `retired`, and messages are missing. Counts are torch's own, per group, the same on all members.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from traincope.store.job.process import Process
from traincope.store.layout import FLIGHT_FILE

COMPLETED = "completed"
REQUEST, STOP = b"?", b"."
"""Messages to a rank's `flight_address`: write the file; end the thread that does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightEntry:
    """One collective as torch issued it."""

    group: str
    """torch's name of the group."""
    sequence: int
    """Its number in the group, from 1."""
    operation: str
    dtype: str
    num_elements: int
    """Elements of the rank's inputs."""
    complete: bool
    created_wall_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """The entries at one instant."""

    at_ns: int
    """By the clock of the rank's records."""
    entries: tuple[FlightEntry, ...]
    """In the order of issue."""
    groups: Mapping[str, tuple[int, ...]]
    """torch's name of each group of the rank -> the group's ranks."""


@dataclass(frozen=True, slots=True)
class FlightFile:
    """The flight recorder of a rank, read on demand: it may be large, and only a hang needs it."""

    directory: Path
    """Of the rank."""

    def read(self) -> Flight | None:
        """None without a file, or if it is damaged."""
        return read_flight(self.directory)


def flight_address(process: Process) -> str:
    """Address of the UNIX socket at which a rank's process takes requests. It is no file, and ends with the process."""
    return f"\0traincope-flight-{process.pid}-{process.started_ticks}"


def read_flight(directory: Path) -> Flight | None:
    """Read a rank's flight recorder; None without a file, or if it is damaged."""
    try:
        raw = json.loads((directory / FLIGHT_FILE).read_bytes())
        trace = raw["trace"]
        entries = [_entry(entry) for entry in trace.get("entries", ()) if not entry.get("is_p2p")]
        groups = {str(name): tuple(map(int, ranks)) for name, ranks in raw["groups"].items()}
        return Flight(at_ns=int(raw["at_ns"]), entries=tuple(entries), groups=groups)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None


def _entry(raw: Mapping[str, Any]) -> FlightEntry:
    return FlightEntry(
        group=str(raw["process_group"][0]),
        sequence=int(raw["collective_seq_id"]),
        operation=str(raw["profiling_name"]).rpartition(":")[2],
        dtype=",".join(map(str, raw.get("input_dtypes", ()))),
        num_elements=sum(prod(map(int, size)) for size in raw.get("input_sizes", ())),
        complete=bool(raw.get("retired")) or raw.get("state") == COMPLETED,
        created_wall_ns=int(raw["time_created_ns"]),
    )
