"""torch's flight recorder of one rank: which collectives it issued last in each group, and which of them are complete.

The format is that of `torch._C._distributed_c10d._dump_fr_trace_json` (torch 2.6 and later). torch writes the same as
a pickle, e.g. when NCCL's watchdog ends a job. Before torch 2.4, entries name their group by its number only, and count
in `seq_id`. On gloo an entry is complete once it is `retired`, and messages are missing. Counts are torch's own, per
group, the same on all members.
"""

import gzip
import json
import pickle
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from traincope.arrays import AFTER_ALL_NS

COMPLETED = "completed"
ON_DEVICE = ("nccl:", "ucc:", "xccl:")
"""Prefixes of operations that ran on GPUs."""
INSTANTS = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
ENTRIES = frozenset(("entries", "pg_config"))
"""Keys of which a dump has at least one."""
PICKLE = b"\x80"
GZIP = b"\x1f\x8b"
DAMAGED = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, OSError, RecursionError, TypeError, ValueError),
    *(pickle.PickleError, zlib.error),
)
"""Exceptions that reading a damaged file raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightEntry:
    """One collective as torch issued it."""

    group: str
    """torch's name of the group."""
    sequence: int
    """Its number in the group, from 1."""
    operation: str
    dtype: str
    num_elements: int | None
    """Elements of the rank's inputs; None if the entry does not state them."""
    complete: bool
    created_wall_ns: int
    timeout_ns: int = 0
    """Time after which NCCL's watchdog ends the job; 0: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """The entries at one instant."""

    at_ns: int
    """Time on the clock of the rank's records."""
    entries: tuple[FlightEntry, ...]
    """In the order of issue."""
    groups: Mapping[str, tuple[int, ...]]
    """torch's name of each group of the rank -> the group's ranks."""
    on_device: bool = False
    """Some collectives ran on GPUs."""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """torch's name of a group -> the description that the training gave it."""
    open_messages: tuple[str, ...] = ()
    """Messages between two ranks that are not complete, as torch names them: `send 0->1`."""
    completed: Mapping[str, int] = field(default_factory=dict)
    """torch's name of a group without messages -> number of its last complete collective."""

    @property
    def timed_out_ns(self) -> int | None:
        """Wall time at which the first collective that is not complete timed out, so that NCCL's watchdog dumps."""
        limits = [entry.created_wall_ns + entry.timeout_ns for entry in self.entries if not entry.complete]
        known = self.on_device and limits and all(entry.timeout_ns for entry in self.entries)
        return min(limits) if known else None


@dataclass(frozen=True, slots=True)
class FlightFile:
    """A file with the flight recorder of one rank, read on demand: it may be large, and only a hang needs it."""

    path: Path

    def read(self) -> Flight | None:
        """None without a file, or if it is damaged."""
        return read_flight(self.path)


def read_flight(path: Path) -> Flight | None:
    """Read what a rank's thread wrote, or a dump that torch wrote as JSON or pickle. None if it cannot be read."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(GZIP) else content
        raw = load_plain(BytesIO(content)) if content.startswith(PICKLE) else json.loads(content)
        trace = raw.get("trace", raw)
        if not ENTRIES & trace.keys():
            return None
        listed = list(trace.get("entries", ()))
        config = {name: _numbers(group["ranks"]) for name, group in trace.get("pg_config", {}).items()}
        at_ns = _whole(raw.get("at_ns", 0)) or max(map(_last_ns, listed), default=0)
        return Flight(
            at_ns=at_ns,
            entries=tuple(_entry(entry, at_ns=at_ns) for entry in listed if not entry.get("is_p2p")),
            groups={str(name): tuple(map(_whole, ranks)) for name, ranks in raw.get("groups", config).items()},
            on_device=any(str(entry["profiling_name"]).startswith(ON_DEVICE) for entry in listed),
            descriptions={group: text for group, text in map(_group, listed) if text},
            open_messages=tuple(dict.fromkeys(_open_messages(listed))),
            completed=_completed(listed, trace.get("pg_status") or {}),
        )
    except DAMAGED:
        return None


def load_plain(file: BinaryIO) -> Any:
    """Read lists, dictionaries, numbers and text of a pickle. Raises NotPlainError if it names anything else: a
    pickle can name any callable.
    """
    return _Plain(file).load()


class NotPlainError(pickle.UnpicklingError):
    """A pickle that holds more than plain data."""


class _Plain(pickle.Unpickler):
    """Reader of plain data."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        raise NotPlainError(f"it names {module}.{name}")


def _completed(listed: Sequence[Mapping[str, Any]], status: Mapping[Any, Any]) -> dict[str, int]:
    """Last complete collective of each group. Its status counts messages too, so it decides for groups without any."""
    with_messages = {_group(entry)[0] for entry in listed if entry.get("is_p2p")}
    last: dict[str, int] = {}
    for entry in listed:
        name, _ = _group(entry)
        known = status.get(str(entry.get("pg_id")), status.get(entry.get("pg_id"))) or {}
        of_entry = _entry(entry, at_ns=0)
        done = [of_entry.sequence] if of_entry.complete and not entry.get("is_p2p") else []
        done += [_whole(known.get("last_completed_collective", -1))] if name not in with_messages else []
        last[name] = max([last.get(name, -1), *done])
    return {name: number for name, number in last.items() if number >= 0}


def _open_messages(listed: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for entry in listed:
        if entry.get("is_p2p") and not _entry(entry, at_ns=0).complete:
            yield str(entry["profiling_name"]).rpartition(":")[2]


def _whole(value: Any) -> int:
    """Raises ValueError for a number that no counter or clock of torch has."""
    number = int(value)
    if abs(number) > AFTER_ALL_NS:
        raise ValueError(f"{number} is beyond 64 bits")
    return number


def _numbers(ranks: Any) -> list[int]:
    """torch writes the ranks of a group as text, e.g. "[0, 1]"; empty for all ranks, or if it does not list them."""
    return list(json.loads(ranks or "[]") if isinstance(ranks, str) else ranks)


def _group(raw: Mapping[str, Any]) -> tuple[str, str]:
    """Name and description of an entry's group."""
    named = raw.get("process_group") or (raw["pg_id"], "")
    return str(named[0]), str(named[1]) if len(named) > 1 else ""


def _last_ns(raw: Mapping[str, Any]) -> int:
    return max(_instants(raw))


def _instants(raw: Mapping[str, Any]) -> list[int]:
    """Instants of an entry, in order; 0 for those that it lacks."""
    return [_whole(raw.get(name) or 0) for name in INSTANTS]


def _num_elements(sizes: Any) -> int | None:
    if sizes is None or any(size is None for size in sizes):
        return None
    return sum(prod(map(int, size)) for size in sizes)


def _entry(raw: Mapping[str, Any], *, at_ns: int) -> FlightEntry:
    """`at_ns`: instant of the dump, which stands for those that an entry lacks."""
    return FlightEntry(
        group=_group(raw)[0],
        sequence=_whole(raw["collective_seq_id"] if "collective_seq_id" in raw else raw["seq_id"]),
        operation=str(raw["profiling_name"]).rpartition(":")[2],
        dtype=",".join(map(str, raw.get("input_dtypes") or ())),
        num_elements=_num_elements(raw.get("input_sizes")),
        complete=bool(raw.get("retired")) or raw.get("state") == COMPLETED,
        created_wall_ns=next(filter(None, _instants(raw)), at_ns),
        timeout_ns=_whole(1_000_000 * int(raw.get("timeout_ms") or 0)),
    )
