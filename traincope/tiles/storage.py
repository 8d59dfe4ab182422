"""Layout of tiles, writing their files, and mapping them from disk, so that a zoom reads only what it draws.

    header.json      meaning of the columns: rows, classes, names, groups, steps, clocks
    spans.bin        SPAN_DTYPE, row by row (a rank's lane), in order of begin
    starts.bin       int64, begins of the pieces: disjoint in their row, each owned by one span, row by row in order
    ends.bin         int64
    classes.bin      uint8, class of each piece, a position in the header's list
    owners.bin       int32, position of the span that owns it
    level-<k>.bin    uint16, channel by bin: the share of each bin that a class covers in a row; 65535 is all of it
    document.json    the report of the same records

Times are ns since the header's `origin_ns`. Bins of a level begin at 0 and are `width_ns` wide. A channel is one class
in one row. A directory is written aside and renamed, so it is complete or missing.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints
from traincope.errors import RunDirectoryError
from traincope.private_files import make_directory, private
from traincope.store.lines import read_object
from traincope.store.lock import is_locked, take_lock
from traincope.whole_files import ASIDE_BEGIN, ASIDE_END, aside_path

VERSION = 4
"""Version of the tiles and of the document next to them."""
HEADER_FILE = "header.json"
LOCK_FILE = "writing.lock"
"""Locked by the process that writes the directory."""
DOCUMENT_FILE = "document.json"
WHOLE = 65535
"""Value of a bin that a class covers fully."""
NOTHING = -1
"""No instance, no parent, or an unknown wait of a span."""

SPAN_DTYPE = np.dtype(
    [
        ("start_ns", "i8"),
        ("end_ns", "i8"),
        ("wait_ns", "i8"),
        ("value", "i8"),
        ("instance", "i4"),
        ("parent", "i4"),
        ("step", "i4"),
        ("name", "i4"),
        ("group", "i4"),
        ("sequence", "u4"),
        ("peer", "i4"),
        ("flags", "u2"),
        ("kind", "u1"),
        ("class", "u1"),
        ("depth", "u1"),
        ("open", "u1"),
    ]
)
"""`wait_ns`: its first part, spent waiting for other ranks. `class`: its class. `open`: its end was not recorded."""

COLUMNS: Mapping[str, np.dtype[Any]] = {
    "spans": SPAN_DTYPE,
    "starts": np.dtype(np.int64),
    "ends": np.dtype(np.int64),
    "classes": np.dtype(np.uint8),
    "owners": np.dtype(np.int32),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A lane of a rank."""

    rank: int
    lane: str
    lines: int
    """Nesting depth of its spans, at least 1."""
    first_span: int
    num_spans: int
    first_piece: int
    num_pieces: int
    first_channel: int
    classes: tuple[int, ...]
    """Classes that occur in it, one channel each."""

    @property
    def pieces(self) -> slice:
        return slice(self.first_piece, self.first_piece + self.num_pieces)

    @property
    def spans(self) -> slice:
        return slice(self.first_span, self.first_span + self.num_spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group."""

    axis: str
    key: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One resolution."""

    width_ns: int
    bins: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Meaning of the columns."""

    origin_ns: int
    """Wall time, ns since the epoch, of the run's first record."""
    length_ns: int
    """Time from the first record to the last."""
    rows: tuple[Row, ...] = ()
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    levels: tuple[Level, ...] = ()
    steps: tuple[tuple[int, int, int], ...] = ()
    """(Number, earliest begin, latest end) over the ranks, ns since the origin."""
    bounds_ns: Mapping[int, int | None] = field(default_factory=dict)
    """Rank -> largest error of its times; None if there is no bound."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Rank -> host; ranks of one host share a clock."""
    missing: tuple[int, ...] = ()
    """Ranks without records."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tiles:
    """Memory-mapped columns: only the accessed parts are read. Equality is identity."""

    path: Path
    header: Header
    spans: NDArray[np.void]
    starts: Ints
    ends: Ints
    classes: NDArray[np.uint8]
    owners: NDArray[np.int32]
    levels: tuple[NDArray[np.uint16], ...]


class TilesWriter:
    """Writer of columns, row by row; `path` appears when `finish` is called."""

    def __init__(self, path: Path) -> None:
        """Create the temporary directory. Raises OSError if nothing can be written."""
        self.path = path
        self._aside = aside_path(path)
        _remove_left(path.parent)
        make_directory(self._aside)
        self._lock: int | None = None
        with suppress(OSError):  # a file system may have no locks
            self._lock = take_lock(self._aside / LOCK_FILE)
        self._files: dict[str, BinaryIO] = {}

    def append(self, column: str, values: NDArray[Any]) -> None:
        if column not in self._files:
            path = str(self._aside / f"{column}.bin")
            self._files[column] = os.fdopen(private(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC), "wb")
        self._files[column].write(np.ascontiguousarray(values).view(np.uint8).data)

    def write_text(self, name: str, text: str) -> None:
        with open(self._aside / name, "w", encoding="utf-8", opener=private) as file:
            file.write(text)

    def finish(self, header: Header) -> None:
        for column in COLUMNS:
            self.append(column, np.empty(0, dtype=COLUMNS[column]))
        for file in self._files.values():
            file.close()
        self.write_text(HEADER_FILE, json.dumps({"version": VERSION, **asdict(header)}))
        shutil.rmtree(self.path, ignore_errors=True)
        (self._aside / LOCK_FILE).unlink(missing_ok=True)
        os.rename(self._aside, self.path)

    def abandon(self) -> None:
        """Delete the temporary directory, unless `finish` was called, and end the lock."""
        for file in self._files.values():
            file.close()
        shutil.rmtree(self._aside, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def complete_tiles(folder: Path) -> list[Path]:
    """All directories of tiles in a folder, without those that are being written. Their header may be a broken link."""
    return [each for each in folder.glob("*") if os.path.lexists(each / HEADER_FILE) and not each.name.startswith(".")]


def _remove_left(folder: Path) -> None:
    """Remove what killed processes wrote aside."""
    for path in folder.glob(f"{ASIDE_BEGIN}*{ASIDE_END}"):
        if path.is_dir() and not is_locked(path / LOCK_FILE):
            shutil.rmtree(path, ignore_errors=True)


def open_tiles(path: Path) -> Tiles:
    """Open tiles. Raises RunDirectoryError if they are missing, of another layout, or damaged."""
    raw = read_object(path / HEADER_FILE)
    if raw.get("version") != VERSION:
        raise RunDirectoryError(f"{path} holds tiles of another layout; remove it, and they are built again")
    try:
        header = _header(raw)
        columns = {name: _mapped(path / f"{name}.bin", dtype) for name, dtype in COLUMNS.items()}
        levels = tuple(
            _mapped(path / f"level-{at}.bin", np.dtype(np.uint16)).reshape(-1, level.bins)
            for at, level in enumerate(header.levels)
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); remove it, and the tiles are built again") from error
    return Tiles(path=path, header=header, levels=levels, **columns)


def _mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    if path.stat().st_size == 0:
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)


def _header(raw: Mapping[str, Any]) -> Header:
    return Header(
        origin_ns=int(raw["origin_ns"]),
        length_ns=int(raw["length_ns"]),
        rows=tuple(Row(**{**row, "classes": tuple(row["classes"])}) for row in raw["rows"]),
        classes=_strings(raw["classes"]),
        names=_strings(raw["names"]),
        groups=tuple(Group(**{**group, "ranks": tuple(group["ranks"])}) for group in raw["groups"]),
        levels=tuple(Level(**level) for level in raw["levels"]),
        steps=tuple((int(number), int(start), int(end)) for number, start, end in raw["steps"]),
        bounds_ns={int(rank): bound for rank, bound in raw["bounds_ns"].items()},
        hosts={int(rank): str(host) for rank, host in raw["hosts"].items()},
        missing=tuple(raw["missing"]),
    )


def _strings(values: Sequence[object]) -> tuple[str, ...]:
    return tuple(map(str, values))
