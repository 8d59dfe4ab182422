"""A kernel trace in the run directory: `trace-000.npz`, one plain numpy column a field, one row an event.

numpy's own format, for it is the one columnar file that the light core can write, and anything with numpy can read:

    columns = np.load("trace-000.npz")
    json.loads(columns["header"].tobytes())["version"]

Parquet would need a dependency of its own for a table that is read whole. Rows are in order of start; of starts only
the gaps to the one before are kept, which are small and compress well. `name`, `category`, `lane` and `launch` are
positions in the lists of strings of the same name in the header.
"""

import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.errors import RunDirectoryError, VersionError
from traincope.store.lines import parse

VERSION = 1
"""Of this file's layout; a field that is added with a meaning when absent keeps it."""
UNKNOWN = -1
"""`launch` of an event that says none, `dtype` of one whose FLOPs are not known."""

KERNEL = "kernel"
MEMORY = ("gpu_memcpy", "gpu_memset")
HOST_OPERATOR = "cpu_op"

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
CODES = ("name", "category", "lane", "launch", "dtype")
"""Columns of positions in lists of strings."""
NUMBERS = ("duration_ns", "correlation", "flops")
_DTYPES = {"start_ns": np.int64, "duration_ns": np.int64, "correlation": np.int64, "flops": np.float64}

DAMAGE = (
    *(OSError, ValueError, LookupError, TypeError, ArithmeticError, EOFError, MemoryError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, struct.error),
)
"""What zipfile and numpy raise for bytes that are not what they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Where events lie one after the other: of a GPU (its number, its stream), of the host (process, thread)."""

    process: str
    thread: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInfo:
    """What a trace says of itself. None is what it does not say."""

    source: str
    """Name of the file it was read from."""
    rank: int | None = None
    world_size: int | None = None
    step: int | None = None
    """The one step that was traced, where the recorder traced it."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """Number of a GPU -> its name."""
    num_read: int = 0
    """Events in the file, those that are no part of `Trace` too: flows, marks, Python calls."""
    lost: str | None = None
    """What of the file could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Complete events of one process; all arrays have one entry an event, in order of start."""

    info: TraceInfo
    names: tuple[str, ...]
    categories: tuple[str, ...]
    """As Kineto has them: kernel, gpu_memcpy, gpu_memset, cpu_op, cuda_runtime, ..."""
    lanes: tuple[Lane, ...]
    launches: tuple[str, ...]
    """Grids and blocks of kernels."""
    dtypes: tuple[str, ...]
    start_ns: Ints
    """Wall time since the epoch, as far as the trace tells it."""
    duration_ns: Ints
    name: Codes
    category: Codes
    lane: Codes
    launch: Codes
    correlation: Ints
    """The same for a launch on the host and what it launched; 0: not said."""
    flops: NDArray[np.float64]
    """Of a matrix product on the host whose shapes were recorded; NaN: not known."""
    dtype: Codes
    """Of that product's factors."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Ints:
        return self.start_ns + self.duration_ns

    def of_category(self, *wanted: str) -> NDArray[np.bool_]:
        """Which events are of these categories."""
        chosen = np.array([category in wanted for category in self.categories] or [False])
        return chosen[self.category]


def write_trace(path: Path, trace: Trace) -> None:
    """Under its name only when it is whole. Raises OSError where it cannot be written."""
    lanes = [[lane.process, lane.thread] for lane in trace.lanes]
    strings = {"name": trace.names, "category": trace.categories, "launch": trace.launches, "dtype": trace.dtypes}
    header = {"version": VERSION, **asdict(trace.info), **strings, "lane": lanes}
    columns = {name: getattr(trace, name) for name in (*CODES, *NUMBERS)}
    columns["gap_ns"] = np.diff(trace.start_ns, prepend=0)
    unborn = path.with_suffix(".new")
    with unborn.open("wb") as file:
        np.savez_compressed(file, header=np.frombuffer(json.dumps(header).encode(), dtype=np.uint8), **columns)
    os.replace(unborn, path)


def read_trace(path: Path) -> Trace:
    """Raises VersionError for a layout this traincope does not know, RunDirectoryError where it is damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as members:
            columns = {name: members[name] for name in members.files}
        header = parse(columns.pop("header").tobytes().decode(errors="replace"))
        version = header.get("version") if isinstance(header, dict) else None
        if version != VERSION:
            raise VersionError(f"{path} has layout {version}, this traincope reads {VERSION}; import the trace anew")
        return _trace(header, columns)
    except DAMAGE as error:
        raise RunDirectoryError(
            f"{path} is damaged ({error or type(error).__name__}); import the trace anew"
        ) from error


def _trace(header: dict[str, Any], columns: dict[str, NDArray[Any]]) -> Trace:
    columns["start_ns"] = np.cumsum(columns.pop("gap_ns"))
    columns = {name: columns[name].astype(_DTYPES.get(name, np.int32)) for name in (*CODES, *NUMBERS, "start_ns")}
    if len({column.shape for column in columns.values()}) != 1 or columns["start_ns"].ndim != 1:
        raise ValueError("columns of different lengths")
    for name in CODES:
        if len(columns[name]) and not UNKNOWN <= columns[name].min() <= columns[name].max() < len(header[name]):
            raise ValueError(f"a {name} that it does not list")
    return Trace(
        info=TraceInfo(**{one.name: header[one.name] for one in fields(TraceInfo)}),
        names=tuple(map(str, header["name"])),
        categories=tuple(map(str, header["category"])),
        lanes=tuple(Lane(process=str(process), thread=str(thread)) for process, thread in header["lane"]),
        launches=tuple(map(str, header["launch"])),
        dtypes=tuple(map(str, header["dtype"])),
        **columns,
    )
