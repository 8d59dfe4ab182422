"""Last records of a rank: what a witness needs to show what the rank was in.

A copy holds the records of the last 5 seconds before the rank's last record, open records, the clock, and the names and
groups in them. Its size is bounded: the newest records of each thread. After a stop of progress, a second copy holds
what the rank's agent saw then: looks at its process with its stacks, and torch's flight recorder.
"""

import json
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from traincope.errors import MissingDependencyError, RunDirectoryError
from traincope.events import FORMAT_VERSION, OPEN, Kind
from traincope.live.node.tail import num_begun, records_at
from traincope.private_files import make_directory
from traincope.store import RankRecords, SegmentRecords
from traincope.store.job.looks import newest_lines
from traincope.store.job.manifests import read_rank_info
from traincope.store.layout import (
    COMPACTED,
    FLIGHT_FILE,
    GROUPS_FILE,
    LOOKS_FILE,
    NAMES_FILE,
    RANK_FILE,
    SEGMENT,
    segment_path,
    thread_and_index,
)
from traincope.store.lines import dense_groups, dense_names, read_numbered
from traincope.store.reading import NAMED_KINDS
from traincope.store.segments.compacted import is_thinned, read_compacted
from traincope.store.segments.joining import KEPT_NS, MAIN, MAX_OTHERS, MAX_RECORDS, first_written_ns
from traincope.store.segments.segments import RECORD_DTYPE, last_instant_ns, plausible, segment_content
from traincope.whole_files import write_whole

MAX_OTHER_THREADS = 3
MAX_PACKED_BYTES = 480 << 10
"""A packed copy fits into a message."""
PARTS = (1, 2, 4, 8)
"""A copy that does not fit is made with one in so many of the records."""
RECORDS_LEVEL, SEEN_LEVEL = 1, 6
"""Levels of compression. Copies of records are made every few seconds."""
MAX_CARD_BYTES = 64 << 10
MAX_LINES_BYTES = 64 << 10
"""Bound of all names, and of all groups."""
MAX_LOOKS_BYTES = 128 << 10
MAX_FLIGHT_BYTES = 2 << 20
"""Before it is compressed, to less than a tenth. torch's flight recorder has up to 2,000 entries."""
_NOT_SEEN = ((0, 0), (0, 0))
GROUPED_KINDS = (Kind.COLLECTIVE, Kind.STALL)


@dataclass(frozen=True, kw_only=True)
class RankCopy:
    """A copy in the form of a rank directory."""

    rank: int
    files: dict[str, bytes]
    """File name -> content."""

    @cached_property
    def packed(self) -> bytes:
        """The files one after another, compressed once for all witnesses: records to a fifth of their size."""
        return zlib.compress(b"".join(self.files.values()), RECORDS_LEVEL if self.has_records else SEEN_LEVEL)

    @property
    def has_records(self) -> bool:
        """False for a copy of what the rank's agent saw."""
        return RANK_FILE in self.files

    def write(self, directory: Path) -> None:
        """Write the files into a rank directory, each as a whole. Raises OSError."""
        make_directory(directory, exist_ok=True)
        for name, content in self.files.items():
            write_whole(directory / name, content)


class RankCopier:
    """Copies of one rank, over time."""

    def __init__(self, directory: Path, *, rank: int) -> None:
        self._directory, self._rank = directory, rank
        self._names, self._groups = _Lines(directory / NAMES_FILE), _Lines(directory / GROUPS_FILE)
        self._before = b""
        self._read: dict[str, NDArray[np.void]] = {}
        self._cut: frozenset[str] = frozenset()
        """Threads of which the last copy lacks records of its time."""
        self._compacted: dict[str, tuple[int, NDArray[np.void]]] = {}
        """Thread -> index and newest records of its last segment that was read in its compacted form."""
        self._seen_before = _NOT_SEEN

    def latest(self) -> RankRecords | None:
        """The newest records as of the last copy, also older ones than a copy holds, with all names and groups. None
        before the first copy, or with a damaged card.
        """
        try:
            info = read_rank_info(self._directory)
        except RunDirectoryError:
            return None
        return RankRecords(
            attempt=0,
            info=info,
            names=self._names.dense(dense_names),
            groups=self._groups.dense(dense_groups),
            segments=tuple(
                SegmentRecords(thread=thread, index=0, records=records, lost_bytes=0)
                for thread, records in self._read.items()
            ),
            problems=(),
        )

    def seen(self) -> RankCopy | None:
        """The looks at the rank and its flight recorder; None if they equal the last ones, or do not exist.

        Send it after records that were read later: then these are as new as each look.
        """
        before, state = self._seen_before, (_state(self._directory / LOOKS_FILE), _state(self._directory / FLIGHT_FILE))
        if state in (before, _NOT_SEEN):
            return None
        self._seen_before = state
        looks = newest_lines(self._directory, max_bytes=MAX_LOOKS_BYTES)
        flight = _whole(self._directory / FLIGHT_FILE, max_bytes=MAX_FLIGHT_BYTES)
        return RankCopy(rank=self._rank, files={LOOKS_FILE: looks, **({FLIGHT_FILE: flight} if flight else {})})

    def changed(self) -> RankCopy | None:
        """The copy as of now; None if it equals the last one, or cannot be read. A copy that does not fit into a
        message has fewer of the newest records.
        """
        try:
            card = (self._directory / RANK_FILE).read_bytes()
        except OSError:
            return None
        if len(card) > MAX_CARD_BYTES:
            return None
        for parts in PARTS:
            copy = self._copy(card, parts=parts)
            if copy is None or len(copy.packed) <= MAX_PACKED_BYTES:
                break
        before, self._before = self._before, b"" if copy is None else _digest(copy)
        return None if self._before == before else copy

    def _copy(self, card: bytes, *, parts: int) -> RankCopy | None:
        """The copy as of now, with one in `parts` of the records that it may have; None without any."""
        threads = self._threads(parts=parts)
        if not threads:
            return None
        records = np.concatenate(list(threads.values()))
        names = records["name"][np.isin(records["kind"], NAMED_KINDS)]
        groups = records["group"][np.isin(records["kind"], GROUPED_KINDS)]
        segments = {
            segment_path(Path(), thread=thread, index=0).name: segment_content(kept, cut=thread in self._cut)
            for thread, kept in threads.items()
        }
        lines = {NAMES_FILE: self._names.of(names), GROUPS_FILE: self._groups.of(groups)}
        return RankCopy(rank=self._rank, files={RANK_FILE: card, **lines, **segments})

    def _threads(self, *, parts: int) -> dict[str, NDArray[np.void]]:
        """Thread -> its last records, the training thread first. Empty threads are left out."""
        newest: dict[str, int] = {}
        written: set[str] = set()
        for path in self._directory.glob("*-*"):
            thread, index = thread_and_index(path)
            if index >= 0 and path.suffix in (SEGMENT, COMPACTED):
                newest[thread] = max(index, newest.get(thread, 0))
                written |= {thread} if path.suffix == SEGMENT else set()
        in_order = sorted(newest, key=lambda thread: (thread != MAIN, thread not in written, thread))
        chosen = in_order[: 1 + MAX_OTHER_THREADS]  # one that ended may have its last records in compacted form only
        read = {
            thread: self._newest_records(
                thread, newest[thread], count=(MAX_RECORDS if thread == MAIN else MAX_OTHERS) // parts
            )
            for thread in chosen
        }
        self._read = {thread: records for thread, (records, _) in read.items()}
        since_ns = max((last_instant_ns(records) for records in self._read.values()), default=0) - KEPT_NS
        self._cut = frozenset(
            thread
            for thread, (records, are_all) in read.items()
            if not are_all and first_written_ns(records) > since_ns
        )
        kept = {thread: records[_is_kept(records, since_ns=since_ns)] for thread, records in self._read.items()}
        return {thread: records for thread, records in kept.items() if len(records)}

    def _newest_records(self, thread: str, index: int, *, count: int) -> tuple[NDArray[np.void], bool]:
        """The newest records of a thread, and the first of each read segment: it holds the clock. And whether these
        are all that the thread has.

        A segment that was just begun is completed from the one before.
        """
        parts: list[NDArray[np.void]] = []
        missing, are_all = count, False
        for number in (index, index - 1):
            if number < 0 or missing <= 0:
                break
            try:
                records, is_whole = self._end_of(thread, number, count=missing)
            except (OSError, RunDirectoryError, MissingDependencyError):
                break  # it was deleted, or records of it were
            parts.insert(0, records)
            missing -= len(records)
            are_all = is_whole and number == 0
        records = np.concatenate([np.empty(0, dtype=RECORD_DTYPE), *parts])
        return records[plausible(records)], are_all

    def _end_of(self, thread: str, index: int, *, count: int) -> tuple[NDArray[np.void], bool]:
        """The newest records of a segment, and whether these are all of it. It is compacted once it is full.

        Raises OSError, RunDirectoryError or MissingDependencyError if it cannot be read, or was thinned.
        """
        path = segment_path(self._directory, thread=thread, index=index)
        try:
            return _end_of_segment(path, count=count)
        except FileNotFoundError:
            if self._compacted.get(thread, (-1,))[0] != index:
                self._compacted[thread] = index, _end_of_compacted(path.with_suffix(COMPACTED))
        records = self._compacted[thread][1]
        is_whole = len(records) <= count
        return (records if is_whole else np.concatenate([records[:1], records[-count:]])), is_whole


Decoded = TypeVar("Decoded")


class _Lines:
    """Numbered lines of a side file, read again when it has grown."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, -1
        self._values: dict[int, Any] = {}
        self._decoded: tuple[int, tuple[Any, ...]] | None = None

    def dense(self, decode: Callable[[Mapping[int, Any]], tuple[Decoded, ...]]) -> tuple[Decoded, ...]:
        """All lines by number, decoded once until the file has grown."""
        if self._decoded is None or self._decoded[0] != self._size:
            self._decoded = self._size, decode(self._values)
        return self._decoded[1]

    def of(self, numbers: NDArray[Any]) -> bytes:
        """The lines with these numbers, up to a bound."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size != self._size:
            self._values, self._size = read_numbered(self._path, version=FORMAT_VERSION), size
        return lines_of(
            {number: self._values[number] for number in np.unique(numbers).tolist() if number in self._values}
        )


def _state(path: Path) -> tuple[int, int]:
    """Time and size of a file; zeros without one."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _whole(path: Path, *, max_bytes: int) -> bytes:
    """Content of a file; empty if it cannot be read, or is larger."""
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError:
        return b""
    return content if len(content) <= max_bytes else b""


def lines_of(values: Mapping[int, Any]) -> bytes:
    """Numbered lines, up to a bound. Lines that exceed it are left out, as the world's group of a large job."""
    content = b""
    for number, value in values.items():
        line = json.dumps([number, value]).encode() + b"\n"
        if len(content) + len(line) > MAX_LINES_BYTES:
            continue
        content += line
    return content


def _end_of_compacted(path: Path) -> NDArray[np.void]:
    """The newest records of a compacted segment, as many as a copy may need, and its first.

    Raises like `read_compacted`, and RunDirectoryError if it was thinned.
    """
    records = read_compacted(path).records
    if is_thinned(path):
        raise RunDirectoryError(f"{path} holds only a part of its records")
    return records if len(records) <= MAX_RECORDS else np.concatenate([records[:1], records[-MAX_RECORDS:]])


def _end_of_segment(path: Path, *, count: int) -> tuple[NDArray[np.void], bool]:
    begun = num_begun(path)
    first = max(begun - count, 0)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        records = records_at(descriptor, first, begun - first)
        return (np.concatenate([records_at(descriptor, 0, 1), records]) if first else records), not first
    finally:
        os.close(descriptor)


def _is_kept(records: NDArray[np.void], *, since_ns: int) -> NDArray[np.bool_]:
    recent = (records["start_ns"] >= since_ns) | (records["end_ns"] >= since_ns)
    return np.asarray(recent | (records["end_ns"] == OPEN) | (records["kind"] == Kind.CLOCK))


def _digest(copy: RankCopy) -> bytes:
    digest = blake2b(digest_size=16)
    for name, content in copy.files.items():
        digest.update(name.encode() + len(content).to_bytes(8, "big") + content)
    return digest.digest()
