"""The last records of a rank, read from the ends of its newest segments."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traincope.errors import RunDirectoryError, refusals
from traincope.events import OPEN, RECORD_BYTES, Kind
from traincope.store.layout import COMPACTED, record_files, thread_and_index
from traincope.store.segments.records import read_records
from traincope.store.segments.segments import HEADER_BYTES, RECORD_DTYPE, begun_records, plausible, read_header
from traincope.timeline.timeline import TRAINING_THREAD

LAST_RECORDS = 2048
"""Records of a summary, per thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRecords:
    """The last records of each thread of a rank."""

    threads: dict[str, NDArray[np.void]]
    """Thread -> its records, in order of begin."""
    main: NDArray[np.void]
    """Those of the training thread, with the step under way if one or two segments have its begin."""
    to_wall_ns: int | None
    """What to add to their times for wall time; None if unknown."""
    whole: bool
    """`threads` has all records of the rank."""
    problems: tuple[str, ...]


def read_last_records(directory: Path, *, ended: bool) -> LastRecords:
    """Read the last records of a rank's directory. `ended`: no step is under way."""
    files: dict[str, list[Path]] = {}
    for path in record_files(directory):
        files.setdefault(thread_and_index(path)[0], []).append(path)
    problems: list[str] = []
    tails, whole = dict[str, _Tail](), True
    for thread, paths in files.items():
        try:
            tail = _tail(paths[-1])
        except RunDirectoryError as error:
            problems.append(str(error))
            whole = False
            continue
        whole &= len(paths) == 1 and len(tail.records) < LAST_RECORDS
        tails[thread] = tail
    main = _with_step(tails.get(TRAINING_THREAD), files.get(TRAINING_THREAD, ()), problems, ended=ended)
    clocks = main[main["kind"] == Kind.CLOCK]
    return LastRecords(
        threads={thread: tail.records for thread, tail in tails.items()},
        main=main,
        to_wall_ns=int(clocks["value"][-1]) - int(clocks["start_ns"][-1]) if len(clocks) else None,
        whole=whole,
        problems=tuple(dict.fromkeys(problems)),  # a file may be tried twice
    )


@dataclass(frozen=True, slots=True)
class _Tail:
    """The last records of a segment."""

    records: NDArray[np.void]
    complete: bool
    """They certainly are all of it."""


def _tail(path: Path) -> _Tail:
    if path.suffix == COMPACTED:
        records = read_records(path).records
        return _Tail(records[-LAST_RECORDS:], len(records) <= LAST_RECORDS)
    return _tail_of_segment(path)


def _tail_of_segment(path: Path) -> _Tail:
    """The last records, without reading what the recorder reserved and did not write yet."""
    with refusals(path):
        return _newest(path)


def _newest(path: Path) -> _Tail:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        read_header(os.pread(descriptor, HEADER_BYTES, 0), path)
        capacity = max(os.fstat(descriptor).st_size - HEADER_BYTES, 0) // RECORD_BYTES
        sealed = bool(capacity) and _is_begun(descriptor, capacity - 1)
        low, high = capacity if sealed else 0, capacity
        while low < high:  # records are begun in order
            middle = (low + high) // 2
            low, high = (middle + 1, high) if _is_begun(descriptor, middle) else (low, middle)
        first = max(low - LAST_RECORDS, 0)
        raw = os.pread(descriptor, (low - first) * RECORD_BYTES, HEADER_BYTES + first * RECORD_BYTES)
    finally:
        os.close(descriptor)
    records = begun_records(np.frombuffer(raw, dtype=RECORD_DTYPE, count=len(raw) // RECORD_BYTES))
    sound = plausible(records)
    return _Tail(records if sound.all() else records[sound], sealed and first == 0)


def _is_begun(descriptor: int, number: int) -> bool:
    """Whether the record of this number was begun. The kind is the last byte of each."""
    return os.pread(descriptor, 1, HEADER_BYTES + (number + 1) * RECORD_BYTES - 1) != b"\0"


def _with_step(tail: _Tail | None, paths: Sequence[Path], problems: list[str], *, ended: bool) -> NDArray[np.void]:
    """The training thread's last records with the step under way.

    A step of very many records began before the tail. Then its whole segment is read, and at last the one before.
    """
    records = np.empty(0, dtype=RECORD_DTYPE) if tail is None else tail.records
    for number, path in enumerate(reversed(paths[-2:])):
        if (ended or _shows_step(records)) and Kind.CLOCK in records["kind"]:
            break
        if number == 0 and tail is not None and tail.complete:
            continue
        try:
            whole = read_records(path).records
        except RunDirectoryError as error:
            problems.append(str(error))
            break
        records = np.concatenate([whole, records]) if number else whole
    return records


def _shows_step(records: NDArray[np.void]) -> bool:
    """True if a step under way is among the records. CLOCK records lie between steps, and one begins each segment."""
    steps = records["kind"] == Kind.STEP
    return bool((records["end_ns"][steps] == OPEN).any() or (records["kind"][1:] == Kind.CLOCK).any())
