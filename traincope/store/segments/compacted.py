"""Compacted segments: the same records as plain Parquet, 6 to 8 bytes each, for any Parquet reader.

One column per field of the record, except `duration_ns` instead of `end_ns` (-1 while open). Rows are in order of
begin. The file gets its name only when it is complete. If a kill left both files, it replaces the segment of the same
name.
"""

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.errors import MissingDependencyError, RunDirectoryError, VersionError
from traincope.events import FORMAT_VERSION, OPEN, READABLE_VERSIONS
from traincope.private_files import private
from traincope.store.layout import COMPACTED
from traincope.store.lines import parse
from traincope.store.segments.segments import RECORD_DTYPE, SegmentRecords, plausible, segment_identity
from traincope.whole_files import written_aside

DELTAS = ("start_ns",)
"""Rising columns, whose differences are small."""
SPLIT_BYTES = ("duration_ns", "sequence")
"""Columns with noisy low bytes and nearly constant high bytes."""
WORDS = ("value", "step", "name", "group", "peer", "tag", "window", "flags", "phase", "kind")
"""Columns with few distinct values."""
COLUMNS = (*DELTAS, *SPLIT_BYTES, *WORDS)
SINCE_VERSION_3 = ("window",)
"""Columns that files of earlier versions lack. They are 0 there."""
ENCODINGS = dict.fromkeys(DELTAS, "DELTA_BINARY_PACKED") | dict.fromkeys(SPLIT_BYTES, "BYTE_STREAM_SPLIT")
METADATA = b"traincope"


def write_compacted(directory: Path, segment: SegmentRecords, *, thinned: bool = False) -> Path:
    """Write a segment as Parquet. `thinned`: some of its records were left out to keep within the disk budget.

    Raises OSError if it cannot be written, MissingDependencyError without pyarrow.
    """
    arrow, parquet = import_pyarrow("compact records")
    path = directory / f"{segment.thread}-{segment.index:05d}{COMPACTED}"
    header = json.dumps({"version": FORMAT_VERSION, "thinned": thinned}).encode()
    table = arrow.table(_columns(segment.records)).replace_schema_metadata({METADATA: header})
    with written_aside(path) as new_path, open(new_path, "xb", opener=private) as file:
        parquet.write_table(
            table,
            file,
            compression="zstd",
            use_dictionary=list(WORDS),
            column_encoding=ENCODINGS,
            write_statistics=False,
        )
    return path


def read_compacted(path: Path) -> SegmentRecords:
    """Read a compacted segment.

    Raises VersionError for an unknown format, RunDirectoryError if it is damaged, OSError if the system refuses,
    MissingDependencyError without pyarrow.
    """
    thread, index = segment_identity(path)
    arrow, parquet = import_pyarrow(f"read {path}")
    try:
        table = parquet.read_table(path)
        _check(path, table.schema.metadata)
        present = [name for name in COLUMNS if name not in SINCE_VERSION_3 or name in table.column_names]
        records = _records({name: table.column(name).to_numpy() for name in present})
    except (OSError, LookupError, TypeError, ValueError, arrow.ArrowException) as error:
        _check_system(error)
        raise RunDirectoryError(f"{path} is damaged ({error}); the other ranks still open") from error
    sound = plausible(records)
    garbled = len(records) - int(np.count_nonzero(sound))
    return SegmentRecords(
        thread=thread, index=index, records=records[sound] if garbled else records, lost_bytes=0, garbled=garbled
    )


def is_thinned(path: Path) -> bool:
    """True if the compacted segment `path` holds only a part of its records. Raises like `read_compacted`."""
    arrow, parquet = import_pyarrow(f"read {path}")
    try:
        return _check(path, parquet.read_schema(path).metadata).get("thinned") is True
    except (OSError, arrow.ArrowException) as error:
        _check_system(error)
        raise RunDirectoryError(f"{path} is damaged ({error}); the other ranks still open") from error


def holds(path: Path, *, kinds: Sequence[int], phases: Sequence[int]) -> bool:
    """True if any record has one of these kinds or phases, from two small columns. Raises like `read_compacted`."""
    arrow, parquet = import_pyarrow(f"read {path}")
    try:
        table = parquet.read_table(path, columns=["kind", "phase"])
        matches = np.isin(table.column("kind").to_numpy(), kinds) | np.isin(table.column("phase").to_numpy(), phases)
    except (OSError, LookupError, TypeError, ValueError, arrow.ArrowException) as error:
        _check_system(error)
        raise RunDirectoryError(f"{path} is damaged ({error}); the other ranks still open") from error
    return bool(matches.any())


def _check_system(error: Exception) -> None:
    """Raise an error of the system again. Those of pyarrow about damage have no number."""
    if isinstance(error, OSError) and error.errno is not None:
        raise error


def _check(path: Path, metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    header = parse((metadata or {}).get(METADATA, b"").decode(errors="replace"))
    if not isinstance(header, dict):
        raise RunDirectoryError(f"{path} is not a compacted segment; remove it, the others still open")
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


def import_pyarrow(purpose: str) -> tuple[ModuleType, ModuleType]:
    """Import pyarrow here, because a training process and most commands never need it."""
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingDependencyError(f"cannot {purpose} without pyarrow: pip install 'traincope[view]'") from error
