"""A kernel trace in the run directory: `trace-000.npz`, one numpy column per field, one row per event.

It is numpy's own format: the only columnar format that traincope can write without extra dependencies, and numpy reads
it:

    columns = np.load("trace-000.npz")
    json.loads(columns["header"].tobytes())["version"]

Parquet would need a dependency for a table that is read as a whole. Rows are in order of start. The file stores the
difference to the previous start, which is small and compresses well. `name`, `category`, `lane` and `launch` are
positions in the lists of the same name in the header.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Codes, Ints
from traincope.errors import RunDirectoryError, VersionError
from traincope.store.lines import parse
from traincope.whole_files import written_aside

VERSION = 1
"""Version of this file's layout. A new field with a default keeps the version."""
UNKNOWN = -1
"""`launch` of an event without one, `dtype` of an event whose FLOPs are unknown."""

KERNEL = "kernel"
MEMORY = ("gpu_memcpy", "gpu_memset")
HOST_OPERATOR = "cpu_op"

CODES = ("name", "category", "lane", "launch", "dtype")
"""Columns of positions in lists of strings."""
NUMBERS = ("duration_ns", "correlation", "flops")
_DTYPES = {"start_ns": np.int64, "duration_ns": np.int64, "correlation": np.int64, "flops": np.float64}

DAMAGE = (
    *(OSError, ValueError, LookupError, TypeError, ArithmeticError, EOFError, MemoryError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)
"""Exceptions that zipfile and numpy raise for damaged bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A sequence of events: one stream of a GPU (number, stream), or one thread of the host (process, thread)."""

    process: str
    thread: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInfo:
    """Metadata of a trace; None where the trace does not state it."""

    source: str
    """Name of the source file."""
    rank: int | None = None
    world_size: int | None = None
    step: int | None = None
    """The traced step, if the recorder traced one step."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Number of a GPU -> its name."""
    num_read: int = 0
    """Events in the file, including those outside `Trace`: flows, marks, Python calls."""
    lost: str | None = None
    """Parts of the file that could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Complete events of one process; all arrays have one entry per event, in order of start."""

    info: TraceInfo
    names: tuple[str, ...]
    categories: tuple[str, ...]
    """Kineto's categories: kernel, gpu_memcpy, gpu_memset, cpu_op, cuda_runtime, ..."""
    lanes: tuple[Lane, ...]
    launches: tuple[str, ...]
    """Grids and blocks of kernels."""
    dtypes: tuple[str, ...]
    start_ns: Ints
    """Wall time since the epoch, as far as the trace states it."""
    duration_ns: Ints
    name: Codes
    category: Codes
    lane: Codes
    launch: Codes
    correlation: Ints
    """Equal for a launch on the host and the launched kernel; 0 if not stated."""
    flops: NDArray[np.float64]
    """FLOPs of a matrix product on the host with recorded shapes; NaN if unknown."""
    dtype: Codes
    """Data type of that product's factors."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Ints:
        return self.start_ns + self.duration_ns

    def of_category(self, *categories: str) -> NDArray[np.bool_]:
        """Mask of the events of these categories."""
        chosen = np.array([category in categories for category in self.categories] or [False])
        return chosen[self.category]


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace; the file gets its name only when it is complete. Raises OSError if it cannot be written."""
    lanes = [[lane.process, lane.thread] for lane in trace.lanes]
    strings = {"name": trace.names, "category": trace.categories, "launch": trace.launches, "dtype": trace.dtypes}
    header = {"version": VERSION, **asdict(trace.info), **strings, "lane": lanes}
    columns = {name: getattr(trace, name) for name in (*CODES, *NUMBERS)}
    columns["gap_ns"] = np.diff(trace.start_ns, prepend=0)
    with written_aside(path) as new_path, new_path.open("xb") as file:
        np.savez_compressed(file, header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **columns)


def read_trace(path: Path) -> Trace:
    """Read a trace. Raises VersionError for an unknown layout, RunDirectoryError if it is damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as members:
            columns = {name: members[name] for name in members.files}
        header = parse(columns.pop("header").tobytes().decode(errors="replace"))
        version = header.get("version") if isinstance(header, dict) else None
        if version != VERSION:
            raise VersionError(f"{path} has layout {version}, this traincope reads {VERSION}; import the trace again")
        return _trace(header, columns)
    except DAMAGE as error:
        raise RunDirectoryError(
            f"{path} is damaged ({error or type(error).__name__}); import the trace again"
        ) from error


def _trace(header: dict[str, Any], columns: dict[str, NDArray[Any]]) -> Trace:
    columns["start_ns"] = np.cumsum(columns.pop("gap_ns"))
    columns = {name: columns[name].astype(_DTYPES.get(name, np.int32)) for name in (*CODES, *NUMBERS, "start_ns")}
    if len({column.shape for column in columns.values()}) != 1 or columns["start_ns"].ndim != 1:
        raise ValueError("columns of different lengths")
    for name in CODES:
        if len(columns[name]) and not UNKNOWN <= columns[name].min() <= columns[name].max() < len(header[name]):
            raise ValueError(f"a {name} outside its list")
    return Trace(
        info=TraceInfo(**{entry.name: header[entry.name] for entry in fields(TraceInfo)}),
        names=tuple(map(str, header["name"])),
        categories=tuple(map(str, header["category"])),
        lanes=tuple(Lane(process=str(process), thread=str(thread)) for process, thread in header["lane"]),
        launches=tuple(map(str, header["launch"])),
        dtypes=tuple(map(str, header["dtype"])),
        **columns,
    )
