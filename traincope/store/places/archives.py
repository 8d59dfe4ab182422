"""Archives in which a host's files are shipped to a URL: zip files, so that a store holds few objects.

attempt-000/archives/HOST-1a2b3c4d-5e6f7a8b/000001764182400000.zip

The last member of each archive is the index of all files that the host has shipped so far: which bytes of which archive
hold each. So the newest archive alone tells what there is, and it replaces the older index the moment it appears. Its
comment locates the index, which one read of its last bytes has. A file that grows has a part in several archives.
"""

import json
import logging
import re
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any, TypeVar

from traincope.errors import RunDirectoryError
from traincope.private_files import file_mode
from traincope.store.lines import parse
from traincope.store.places.remote import RemoteFiles

logger = logging.getLogger(__name__)

VERSION = 1
DIRECTORY, SUFFIX = "archives", ".zip"
INDEX_FILE = "index.json"
COMMENT = "traincope index at {at:020d} of {stored:020d} bytes"
COMMENT_BYTES = len(COMMENT.format(at=0, stored=0))
LOCATED = re.compile(rb"traincope index at (\d{20}) of (\d{20}) bytes")
TAIL_BYTES = 64 << 10
"""The first read of an archive. It has the index of some 1,500 files."""
AT_ONCE = 32
"""Archives whose ends are in memory at the same time."""
PACKED = frozenset((".parquet", ".gz", ".npz"))
"""Files that are compressed already."""
MAX_NUMBER = 1 << 60
MAX_STATE = 100
"""Longest state of a file."""
MAX_INDEX_BYTES = 256 << 20
FASTEST = 1
"""Level of compression: the agent has little of a core."""
DAMAGED = "damaged"
"""State of a file of which bytes changed in the store. Its host ships it again, if it still has it."""
GAP_BYTES = 128 << 10
"""Parts with at most this between them are read at once."""
READ_BYTES = 8 << 20
"""A read that has so many bytes takes no more parts."""

Label = TypeVar("Label")


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one file in an archive."""

    archive: int
    """Number of the archive."""
    at: int
    """Offset of the stored bytes in the archive."""
    stored: int
    """Number of stored bytes."""
    start: int
    """Offset of the bytes in the file."""
    end: int
    is_deflated: bool
    crc: int
    """CRC-32 of the bytes, as zip files have it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the index."""

    state: str
    """Changes whenever the content does; empty if that is unknown."""
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return self.parts[-1].end if self.parts else 0

    @property
    def version(self) -> str:
        """Changes whenever the content does, and not when it moves to another archive."""
        return self.state or "-".join(f"{part.crc:08x}" for part in self.parts)


@dataclass(frozen=True, slots=True)
class Archive:
    """One archive of the index."""

    hour: int
    """Hours since 1970 of what is in it."""
    size: int
    """Its bytes without the index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """All files of a host in one attempt, as of an archive."""

    number: int
    """Number of the newest archive: milliseconds since 1970 and up to 1,000 more. Larger than all before."""
    files: Mapping[str, Entry] = field(default_factory=dict)
    archives: Mapping[int, Archive] = field(default_factory=dict)


def readable(index: Index, present: Collection[int]) -> dict[str, Entry]:
    """The files of an index whose archives are present. A rule of the store may have removed others."""
    gone = index.archives.keys() - set(present)
    return {name: entry for name, entry in index.files.items() if not any(part.archive in gone for part in entry.parts)}


def archive_name(folder: str, number: int) -> str:
    return f"{folder}/{number:018d}{SUFFIX}"


def archive_number(name: str) -> int | None:
    """Number of an archive; None for any other file."""
    path = PurePosixPath(name)
    is_archive = path.suffix == SUFFIX and path.stem.isdecimal() and path.parts[-3:-2] == (DIRECTORY,)
    return int(path.stem) if is_archive else None


def newest_archives(names: Iterable[str]) -> dict[str, int]:
    """Folder of each host -> number of its newest archive."""
    newest: dict[str, int] = {}
    for name in names:
        number = archive_number(name)
        if number is not None:
            folder = str(PurePosixPath(name).parent)
            newest[folder] = max(number, newest.get(folder, 0))
    return newest


def newest_index(remote: RemoteFiles, folder: str, archives: Mapping[str, int]) -> Index:
    """The index of the newest archive of a host that can be read; an empty one without any. `archives`: all of the
    host, with their sizes. Raises ServerError, FileNotFoundError.
    """
    for name in sorted(archives, reverse=True):
        if archive_number(name) is not None and str(PurePosixPath(name).parent) == folder:
            try:
                return read_indexes(remote, {name: archives[name]})[0]
            except RunDirectoryError as error:
                logger.warning("%s; until then an older archive of this host is used, if there is one", error)
    return Index(number=0)


def read_indexes(
    remote: RemoteFiles, archives: Mapping[str, int], *, kept: dict[str, bytes] | None = None
) -> list[Index]:
    """Read the indexes of archives, whose sizes are given. `kept` has stored bytes of indexes that were read before, by
    the archive's name, and gets those that are read.

    Raises RunDirectoryError if one is damaged, FileNotFoundError if one was replaced meanwhile, ServerError.
    """
    stored = {} if kept is None else kept
    _read_stored(remote, {name: size for name, size in archives.items() if name not in stored}, stored)
    indexes = []
    for name in archives:
        content = stored.pop(name)
        indexes.append(_index_of(content, f"{remote.url}/{name}"))
        stored[name] = content  # a damaged one is not kept
    return indexes


def _read_stored(remote: RemoteFiles, archives: Mapping[str, int], found: dict[str, bytes]) -> None:
    """Add the stored bytes of indexes to `found`. Raises as `read_indexes`."""
    names = list(archives)
    for first in range(0, len(names), AT_ONCE):
        sizes = {name: archives[name] for name in names[first : first + AT_ONCE]}
        calls = [remote.begin_part(name, start=max(size - TAIL_BYTES, 0), end=size) for name, size in sizes.items()]
        for (name, size), call in zip(sizes.items(), calls, strict=True):
            tail, begin, place = remote.end_part(call), max(size - TAIL_BYTES, 0), f"{remote.url}/{name}"
            at, stored = _index_place(tail, place)
            if at < begin:
                tail, begin = remote.read_part(name, start=at, end=at + stored), at
            found[name] = tail[at - begin :][:stored]


def _index_place(tail: bytes, place: str) -> tuple[int, int]:
    """Offset of the index in an archive, and the number of its bytes, from the archive's last bytes.

    Raises RunDirectoryError if they are not those of an archive.
    """
    found = LOCATED.fullmatch(tail[-COMMENT_BYTES:])
    if found is None:
        raise _damaged(place, "it has no index at its end")
    return int(found[1]), int(found[2])


def _index_of(content: bytes, place: str) -> Index:
    """Decode an index. Raises RunDirectoryError if it is damaged."""
    try:
        raw = parse(zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, MAX_INDEX_BYTES).decode())
        if raw["version"] != VERSION:
            raise _damaged(place, f"its index has version {raw['version']}, which a newer traincope wrote")
        files = {
            name: Entry(state=str(state)[:MAX_STATE], parts=tuple(Part(*map(_checked, part)) for part in parts))
            for name, (state, parts) in raw["files"].items()
        }
        for name, entry in files.items():
            if [part.start for part in entry.parts] != [0, *(part.end for part in entry.parts[:-1])]:
                raise ValueError(f"the parts of {name} do not follow each other")
        archives = {int(number): Archive(*map(_checked, values)) for number, values in raw["archives"].items()}
        return Index(number=_checked(raw["number"]), files=files, archives=archives)
    except (zlib.error, LookupError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(place, f"its index cannot be read: {error}") from error


def unpacked(stored: bytes, part: Part, place: str) -> bytes:
    """The bytes of a part. Raises RunDirectoryError if they are not those that were shipped."""
    try:
        length = max(part.end - part.start, 1)  # 0 would be no limit
        content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, length) if part.is_deflated else stored
    except zlib.error as error:
        raise _damaged(place, str(error)) from error
    if len(content) != part.end - part.start or zlib.crc32(content) != part.crc:
        raise _damaged(place, "its bytes have another checksum")
    return content


def reads(parts: Iterable[tuple[str, Part, Label]]) -> Iterator[list[tuple[str, Part, Label]]]:
    """Group parts of archives into reads of neighbours. `parts`: the archive's name, the part, and anything."""
    read: list[tuple[str, Part, Label]] = []
    for each in sorted((each for each in parts if each[1].stored), key=lambda each: (each[0], each[1].at)):
        if read:
            archive, last, _ = read[-1]
            is_near = each[0] == archive and each[1].at - (last.at + last.stored) <= GAP_BYTES
            if not is_near or each[1].at - read[0][1].at > READ_BYTES:
                yield read
                read = []
        read.append(each)
    if read:
        yield read


def content_of(index: Index) -> bytes:
    """The index as JSON."""
    content = {
        "version": VERSION,
        "number": index.number,
        "archives": {number: (archive.hour, archive.size) for number, archive in index.archives.items()},
        "files": {name: (entry.state, list(map(_values, entry.parts))) for name, entry in index.files.items()},
    }
    return json.dumps(content, separators=(",", ":")).encode()


class ArchiveWriter:
    """A new archive, in memory: a full disk of the node must not keep its records there."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._file = BytesIO()
        self._zip = zipfile.ZipFile(self._file, "w")

    @property
    def size(self) -> int:
        return self._file.tell()

    def add(self, name: str, content: bytes, *, start: int = 0) -> Part:
        """Add bytes of a file, from its offset `start` on."""
        info = zipfile.ZipInfo(name if not start else f"{name}.from-{start}")
        info.external_attr = file_mode() << 16
        is_deflated = PurePosixPath(name).suffix not in PACKED and bool(content)
        info.compress_type = zipfile.ZIP_DEFLATED if is_deflated else zipfile.ZIP_STORED
        self._zip.writestr(info, content, compresslevel=FASTEST)
        return Part(
            archive=self.number,
            at=self._file.tell() - info.compress_size,
            stored=info.compress_size,
            start=start,
            end=start + len(content),
            is_deflated=is_deflated,
            crc=info.CRC,
        )

    def drop(self) -> None:
        """Forget the archive. A `ZipFile` that is not closed writes a traceback when Python removes it."""
        self._zip.close()

    def close(self, index: Index) -> bytes:
        """Add the index, and return the whole archive."""
        part = self.add(INDEX_FILE, content_of(index))
        self._zip.comment = COMMENT.format(at=part.at, stored=part.stored).encode()
        self._zip.close()
        return self._file.getvalue()


def _checked(value: Any) -> Any:
    """A number of the index. Raises ValueError for anything else."""
    if not isinstance(value, int) or not 0 <= value < MAX_NUMBER:
        raise ValueError(f"{value!r} is not an offset or a size")
    return value


def _values(part: Part) -> tuple[Any, ...]:
    return (part.archive, part.at, part.stored, part.start, part.end, part.is_deflated, part.crc)


def _damaged(place: str, why: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{place} is damaged: {why}; if its host still has its records, remove it and ship them from there again"
    )
