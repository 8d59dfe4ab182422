"""Compacted segments: the same records as plain Parquet, 6 to 8 bytes each, for anything that reads Parquet.

One column a field of the record, but `duration_ns` in place of `end_ns`: -1 while it has no end. Rows are in the
order the records were begun. The file is under its name only when it is whole, and then stands for the segment of
the same name, should a kill have left both.
"""

import json
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.errors import MissingDependencyError, RunDirectoryError, VersionError
from traincope.events import FORMAT_VERSION, OPEN, READABLE_VERSIONS
from traincope.store.layout import COMPACTED
from traincope.store.lines import parse
from traincope.store.segments import RECORD_DTYPE, SegmentRecords, make_sense, named

DELTAS = ("start_ns",)
"""Columns that rise: of them the differences are small."""
SPLIT_BYTES = ("duration_ns", "sequence")
"""Columns whose low bytes are noise, and whose high bytes are nearly always the same."""
WORDS = ("value", "step", "name", "group", "peer", "tag", "flags", "phase", "kind")
"""Columns of few distinct values."""
COLUMNS = (*DELTAS, *SPLIT_BYTES, *WORDS)
ENCODINGS = dict.fromkeys(DELTAS, "DELTA_BINARY_PACKED") | dict.fromkeys(SPLIT_BYTES, "BYTE_STREAM_SPLIT")
METADATA = b"traincope"
UNBORN = ".new"


def write_compacted(directory: Path, segment: SegmentRecords, *, thinned: bool = False) -> Path:
    """`thinned`: records of it were left out to keep within the disk's budget.

    Raises OSError where it cannot be written, MissingDependencyError without pyarrow.
    """
    arrow, parquet = _pyarrow("compact records")
    path = directory / f"{segment.thread}-{segment.index:05d}{COMPACTED}"
    header = json.dumps({"version": FORMAT_VERSION, "thinned": thinned}).encode()
    table = arrow.table(_columns(segment.records)).replace_schema_metadata({METADATA: header})
    unborn = path.with_suffix(UNBORN)
    try:
        parquet.write_table(
            table,
            unborn,
            compression="zstd",
            use_dictionary=list(WORDS),
            column_encoding=ENCODINGS,
            write_statistics=False,
        )
        os.replace(unborn, path)
    finally:
        unborn.unlink(missing_ok=True)
    return path


def read_compacted(path: Path) -> SegmentRecords:
    """Raises VersionError for a format this traincope does not know, RunDirectoryError where it is damaged,
    MissingDependencyError without pyarrow.
    """
    thread, index = named(path)
    arrow, parquet = _pyarrow(f"read {path}")
    try:
        table = parquet.read_table(path)
        _check(path, table.schema.metadata)
        records = _records({name: table.column(name).to_numpy() for name in COLUMNS})
    except (OSError, LookupError, TypeError, ValueError, arrow.ArrowException) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); the other ranks still open") from error
    sound = make_sense(records)
    garbled = len(records) - int(np.count_nonzero(sound))
    return SegmentRecords(
        thread=thread, index=index, records=records[sound] if garbled else records, lost_bytes=0, garbled=garbled
    )


def is_thinned(path: Path) -> bool:
    """Whether `path`, a compacted segment, holds only a part of its records. Raises as `read_compacted`."""
    arrow, parquet = _pyarrow(f"read {path}")
    try:
        return _check(path, parquet.read_schema(path).metadata).get("thinned") is True
    except (OSError, arrow.ArrowException) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); the other ranks still open") from error


def holds(path: Path, *, kinds: Sequence[int], phases: Sequence[int]) -> bool:
    """Whether any of its records is of one of these kinds or phases, by two small columns. Raises likewise."""
    arrow, parquet = _pyarrow(f"read {path}")
    try:
        table = parquet.read_table(path, columns=["kind", "phase"])
        found = np.isin(table.column("kind").to_numpy(), kinds) | np.isin(table.column("phase").to_numpy(), phases)
    except (OSError, LookupError, TypeError, ValueError, arrow.ArrowException) as error:
        raise RunDirectoryError(f"{path} is damaged ({error}); the other ranks still open") from error
    return bool(found.any())


def _check(path: Path, metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    header = parse((metadata or {}).get(METADATA, b"").decode(errors="replace"))
    if not isinstance(header, dict):
        raise RunDirectoryError(f"{path} is no compacted segment; remove it, the others still open")
    if header.get("version") not in READABLE_VERSIONS:
        raise VersionError(
            f"{path} is of format {header.get('version')}, this traincope reads format {FORMAT_VERSION} and older; "
            "open it with the traincope that wrote it, or a newer one"
        )
    return header


def _columns(records: NDArray[np.void]) -> dict[str, NDArray[Any]]:
    columns = {name: np.ascontiguousarray(records[name]) for name in COLUMNS if name != "duration_ns"}
    starts, ends = records["start_ns"], records["end_ns"]
    return columns | {"duration_ns": np.where(ends == OPEN, OPEN, ends - starts)}


def _records(columns: dict[str, NDArray[Any]]) -> NDArray[np.void]:
    records = np.zeros(len(columns["kind"]), dtype=RECORD_DTYPE)
    for name, column in columns.items():
        if name != "duration_ns":
            records[name] = column
    durations = columns["duration_ns"]
    records["end_ns"] = np.where(durations == OPEN, OPEN, columns["start_ns"] + durations)
    return records


def _pyarrow(purpose: str) -> tuple[ModuleType, ModuleType]:
    """Imported here, for a training process and most commands never need it."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependencyError(f"cannot {purpose} without pyarrow: pip install 'traincope[view]'") from error
