"""A kernel trace in the run directory: `trace-000.npz`, one numpy column per field, one row per event.

It is numpy's own format: the only columnar format that traincope can write without extra dependencies, and numpy reads
it:

    columns = np.load("trace-000.npz")
    json.loads(columns["header"].tobytes())["version"]

Parquet would need a dependency for a table that is read as a whole. Rows are in order of start. The file stores the
difference to the previous start, which is small and compresses well. `name`, `category`, `lane`, `launch`, `dtype` and
`collective` are positions in the lists of the same name in the header. A column that an older traincope did not write
is unknown for each event.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Codes, Ints
from traincope.errors import RunDirectoryError, VersionError
from traincope.events import Work
from traincope.private_files import private
from traincope.store.lines import parse
from traincope.whole_files import written_aside

VERSION = 1
"""Version of this file's layout. A new field with a default keeps the version."""
UNKNOWN = -1
"""A position, sequence number or number of bytes that an event does not have."""

COMPRESSION = 3
"""zlib's level: a sixth larger than at numpy's level 6, in a third of the time."""

KERNEL = "kernel"
MEMORY = ("gpu_memcpy", "gpu_memset")
HOST_OPERATOR = "cpu_op"
PYTHON_FUNCTION = "python_function"

CODES = ("name", "category", "lane", "launch", "dtype", "collective")
"""Columns of positions in lists."""
NUMBERS = (
    *("duration_ns", "correlation", "flops", "sequence", "forward_thread", "num_bytes", "work"),
    *("read_bytes", "written_bytes"),
)
_LATER = {
    "sequence": UNKNOWN,
    "forward_thread": 0,
    "num_bytes": UNKNOWN,
    "collective": UNKNOWN,
    "work": Work.MATMUL,
    "read_bytes": UNKNOWN,
    "written_bytes": UNKNOWN,
}
"""Columns that the first traincope did not write, and their value for an event that does not state it."""

Row = TypeVar("Row", "TraceGroup", "TraceCollective")

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
class TraceGroup:
    """A process group of the traced process."""

    name: str
    description: str | None = None
    size: int | None = None
    ranks: tuple[int, ...] = ()
    """Global ranks; empty if the trace does not state them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCollective:
    """Metadata of a collective, as torch attaches it to the operator and to its kernels; None if not stated."""

    name: str | None = None
    group: str | None = None
    """Name of the process group."""
    description: str | None = None
    """Description of the process group."""
    ranks: tuple[int, ...] = ()
    """Global ranks of the group; empty if not stated. torch abbreviates more than 30: use `Trace.ranks_of`."""
    group_size: int | None = None
    dtype: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    in_split: tuple[int, ...] = ()
    """Elements sent to each member; empty for equal parts, and for more than 30 members."""
    out_split: tuple[int, ...] = ()
    sequence: int | None = None
    """The group's count of collectives; older torch does not state it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInfo:
    """Metadata of a trace; None where the trace does not state it."""

    source: str
    """Name of the source file."""
    host: str | None = None
    """Name of the host that wrote it."""
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
    num_untimed: int = 0
    """Events that were left out because a time of theirs is not a number of 64 bits."""
    num_negative: int = 0
    """Events with a negative duration, which count as 0 ns long. Kineto has written such ones."""
    num_twice: int = 0
    """Events that the file has twice, as where a file was appended to itself. They count once."""
    has_shapes: bool = False
    """True if some operator has the shapes of its arguments."""
    has_strides: bool = False
    groups: tuple[TraceGroup, ...] = ()
    """Process groups; empty if the trace does not list them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Complete events of one process; all arrays have one entry per event, in order of start."""

    info: TraceInfo
    names: tuple[str, ...]
    categories: tuple[str, ...]
    """Kineto's categories: kernel, gpu_memcpy, gpu_memset, cpu_op, cuda_runtime, ... Of python_function only garbage
    collection and compilation are kept."""
    lanes: tuple[Lane, ...]
    launches: tuple[str, ...]
    """Grids and blocks of kernels."""
    dtypes: tuple[str, ...]
    collectives: tuple[TraceCollective, ...]
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
    """FLOPs of a host's operator with recorded shapes, without those of an operator around it; NaN if unknown. Causal
    attention counts in full."""
    dtype: Codes
    """Data type of that operator's factors."""
    work: Ints
    """`Work` of that operator; MATMUL also without FLOPs. AGAIN is a fused backward of attention: the fifth of its five
    equal products is computed again."""
    read_bytes: Ints
    """Bytes that a host's operator with recorded strides reads at least; UNKNOWN if they are open, or part of those of
    an operator around it."""
    written_bytes: Ints
    """Bytes that it writes at least."""
    sequence: Ints
    """Autograd's sequence number of an operator; UNKNOWN if it has none."""
    forward_thread: Ints
    """Thread of the forward operator that a backward operator belongs to; 0 if not stated."""
    num_bytes: Ints
    """Bytes of a copy; UNKNOWN if not stated."""
    collective: Codes
    """Collective of a communication kernel, or of the operator record_param_comms; UNKNOWN if it has no metadata."""

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Ints:
        return self.start_ns + self.duration_ns

    def of_category(self, *categories: str) -> NDArray[np.bool_]:
        """Mask of the events of these categories."""
        chosen = np.array([category in categories for category in self.categories] or [False])
        return chosen[self.category]

    def ranks_of(self, collective: TraceCollective) -> tuple[int, ...]:
        """Global ranks of the collective's group; empty if the trace does not state them."""
        listed = (group.ranks for group in self.info.groups if group.name == collective.group)
        return collective.ranks or next(listed, ())


def column_dtype(name: str) -> type[np.generic]:
    """Type of a column's values."""
    return np.float64 if name == "flops" else np.int32 if name in CODES else np.int64


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace; the file gets its name only when it is complete. Raises OSError if it cannot be written."""
    lanes = [[lane.process, lane.thread] for lane in trace.lanes]
    strings = {"name": trace.names, "category": trace.categories, "launch": trace.launches, "dtype": trace.dtypes}
    tables = {"groups": map(astuple, trace.info.groups), "collective": map(astuple, trace.collectives), "lane": lanes}
    header = {
        "version": VERSION,
        **asdict(trace.info),
        **strings,
        **{name: list(rows) for name, rows in tables.items()},
    }
    columns = {name: getattr(trace, name) for name in (*CODES, *NUMBERS)}
    columns["gap_ns"] = np.diff(trace.start_ns, prepend=0)
    with written_aside(path) as new_path, open(new_path, "xb", opener=private) as file:
        columns["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=COMPRESSION) as members:
            for name, column in columns.items():
                with members.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, column, allow_pickle=False)


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
    later = {name: np.full(columns["start_ns"].shape, value) for name, value in _LATER.items()}
    columns = {name: (later | columns)[name].astype(column_dtype(name)) for name in (*CODES, *NUMBERS, "start_ns")}
    if len({column.shape for column in columns.values()}) != 1 or columns["start_ns"].ndim != 1:
        raise ValueError("columns of different lengths")
    shaped, strided = bool(np.isfinite(columns["flops"]).any()), bool((columns["read_bytes"] != UNKNOWN).any())
    since = {
        "host": None,
        "num_untimed": 0,
        "num_negative": 0,
        "num_twice": 0,
        "has_shapes": shaped,
        "has_strides": strided,
    }  # as far as an older file shows it
    header = {"collective": [], "groups": [], **since, **header}
    for name in CODES:
        if len(columns[name]) and not UNKNOWN <= columns[name].min() <= columns[name].max() < len(header[name]):
            raise ValueError(f"a {name} outside its list")
    header["groups"] = _rows(TraceGroup, header["groups"])
    return Trace(
        info=TraceInfo(**{entry.name: header[entry.name] for entry in fields(TraceInfo)}),
        names=tuple(map(str, header["name"])),
        categories=tuple(map(str, header["category"])),
        lanes=tuple(Lane(process=str(process), thread=str(thread)) for process, thread in header["lane"]),
        launches=tuple(map(str, header["launch"])),
        dtypes=tuple(map(str, header["dtype"])),
        collectives=_rows(TraceCollective, header["collective"]),
        **columns,
    )


def _rows(kind: type[Row], rows: Iterable[list[Any]]) -> tuple[Row, ...]:
    """Build a table from lists of values in order of the fields; later fields may be missing."""
    names = [entry.name for entry in fields(kind)]
    values: Iterable[list[Any]] = ([tuple(v) if isinstance(v, list) else v for v in row] for row in rows)
    return tuple(kind(**dict(zip(names, row, strict=False))) for row in values)
