"""A destination behind a URL: the files of a host go into archives, so that a store holds few objects of a node.

What is written stays in memory until `commit`, which writes it as one object, with the index of all
files. An object appears whole, so an interrupted upload changes nothing. The next agent continues from the index of the
newest archive. Files of the run, to which several hosts write, are no part of archives.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import PurePosixPath

from traincope.errors import RunDirectoryError, ServerError
from traincope.live.shipping.folding import folded
from traincope.live.shipping.selecting import PLAIN
from traincope.store.places.archives import (
    DAMAGED,
    DIRECTORY,
    Archive,
    ArchiveWriter,
    Entry,
    Index,
    Part,
    archive_name,
    archive_number,
    newest_index,
    readable,
    reads,
    unpacked,
)
from traincope.store.places.remote import RemoteFile, RemoteFiles

logger = logging.getLogger(__name__)

KEPT_BYTES = 4 << 20
"""Smaller archives stay in memory while they may be taken over."""
GRACE_NS = 300_000_000_000
"""Time for which an archive stays after it was replaced: commands and other processes may still need it."""
RANDOM_MS = 1_000
"""Two processes that ship the same files must not write the same archive."""
MS = 1_000_000
HOUR_MS = 3_600_000


class Archives:
    """The place behind a URL, for the files of one host in one attempt."""

    gathers = True

    def __init__(self, remote: RemoteFiles, *, wall_ns: Callable[[], int] = time.time_ns) -> None:
        self.place = remote.url
        self._remote, self._wall_ns = remote, wall_ns
        self._folder = ""
        self._index = Index(number=0)
        self._files: dict[str, Entry] = {}
        """The index of the next archive."""
        self._writer: ArchiveWriter | None = None
        self._last_number = self._newest_seen = 0
        self._kept: dict[int, bytes] = {}
        """Small archives of this hour."""
        self._dead: dict[str, int] = {}
        """Archives that the newest index does not need, and when that was first seen, in ns of wall time."""
        self._has_warned = False

    def begin(self, folder: str) -> Mapping[str, str]:
        """Read the index of the newest archive in the folder of a host, and return the states of its files."""
        self._folder = f"{PurePosixPath(folder).parent}/{DIRECTORY}/{PurePosixPath(folder).name}"
        self._drop()
        sizes = self._sizes()
        index = newest_index(self._remote, self._folder, {name: file.size for name, file in sizes.items()})
        present = _numbers(sizes)
        archives = {number: archive for number, archive in index.archives.items() if number in present}
        self._index = replace(index, files=readable(index, present), archives=archives)
        self._files, self._last_number = dict(self._index.files), max(self._last_number, *present, 0)
        self._newest_seen = max(present, default=0)
        named = {archive_name(self._folder, number) for number in self._index.archives}
        self._dead = {name: self._dead.get(name, self._wall_ns()) for name in set(sizes) - named}
        return {name: entry.state for name, entry in self._files.items()}

    @property
    def gathered_bytes(self) -> int:
        """Bytes that the next commit writes."""
        return 0 if self._writer is None else self._writer.size

    def read(self, name: str) -> bytes | None:
        try:
            return self._remote.read(name)
        except FileNotFoundError:
            return None

    def folders(self, name: str) -> list[str]:
        return self._remote.folders(name)

    def write(self, name: str, content: bytes) -> None:
        if PurePosixPath(name).name in PLAIN:
            self._remote.write(name, content)
            return
        self._files[name] = Entry(state="", parts=(self._next().add(name, content),))

    def append(self, name: str, content: bytes, *, at: int) -> bool:
        entry = self._files.get(name)
        if entry is None or entry.size != at:
            return False
        self._files[name] = replace(entry, parts=(*entry.parts, self._next().add(name, content, start=at)))
        return True

    def remove(self, name: str) -> None:
        self._files.pop(name, None)

    def commit(self, states: Mapping[str, str], *, last: bool = False) -> int:
        """Write what was gathered as one object. `states`: of the files in it. Returns the number of bytes on the wire.

        `last`: this process ends, so nothing is taken over, and what is not needed is removed at once. Raises OSError,
        ServerError, RunDirectoryError; what was gathered is then forgotten.
        """
        if self._files == self._index.files:
            self._drop()
            return 0
        try:
            self._check_alone()
            return self._commit(states, last=last)
        finally:
            self._files = dict(self._index.files)
            self._drop()

    def _check_alone(self) -> None:
        """Raise ServerError if another process has shipped the same files since: its index must not be lost."""
        self._refuse_others(_numbers(self._sizes()))

    def _check_arrived(self, number: int, *, size: int) -> None:
        """Raise ServerError if another process wrote at the same time: neither index names the files of the other. Both
        then begin again from the newest archive that is left.
        """
        name, sizes = archive_name(self._folder, number), self._sizes()
        if name not in sizes or sizes[name].size != size:
            raise ServerError(f"{self._place_of(number)} was replaced by another process that ships the same files")
        try:
            self._refuse_others(_numbers(sizes) - {number})
        except ServerError:
            self._remote.remove(name)
            raise

    def _refuse_others(self, numbers: set[int]) -> None:
        newest = max(numbers, default=0)
        if newest > self._newest_seen:
            raise ServerError(f"{self._place_of(newest)} was written by another process that ships the same files")

    def _commit(self, states: Mapping[str, str], *, last: bool) -> int:
        for name, state in states.items():
            if name in self._files:
                self._files[name] = replace(self._files[name], state=state)
        writer = self._next()
        hour = writer.number // HOUR_MS
        live = _live(entry for entry in self._files.values() if entry.state != DAMAGED)
        new_bytes = live.pop(writer.number, 0)
        taken: list[int] = []
        if not last:
            taken, hour = folded(self._index.archives, live, new_bytes=new_bytes, hour=hour)
        num_read, problems = self._take_over(set(taken), writer)
        kept = _live(self._files.values()).keys() - {writer.number}
        archives = {number: self._index.archives[number] for number in sorted(kept)}
        archives[writer.number] = Archive(hour, writer.size)
        index = Index(number=writer.number, files=dict(self._files), archives=archives)
        content = writer.close(index)
        self._remote.write(archive_name(self._folder, writer.number), content)
        self._check_arrived(writer.number, size=len(content))
        for number in self._index.archives.keys() - archives.keys():
            self._dead[archive_name(self._folder, number)] = self._wall_ns()
        self._index, self._newest_seen = index, writer.number
        self._kept |= {writer.number: content} if len(content) <= KEPT_BYTES else {}
        self._kept = {n: kept for n, kept in self._kept.items() if n in archives and archives[n].hour >= hour}
        self._remove_dead(at_once=last)
        if problems:
            raise problems[0]  # the next round begins with the index, and ships these files again
        return len(content) + num_read

    def _take_over(self, taken: set[int], writer: ArchiveWriter) -> tuple[int, list[RunDirectoryError]]:
        """Copy what is live in these archives into the next one.

        Returns the number of bytes that the store sent, and why files cannot be copied. They stay where they are.
        """
        needed = {
            name: entry
            for name, entry in sorted(self._files.items())
            if entry.state != DAMAGED and taken & {part.archive for part in entry.parts}
        }
        num_read, stored = self._stored(part for part in _parts(needed.values()) if part.archive in taken)
        problems: list[RunDirectoryError] = []
        for name, entry in needed.items():
            try:
                parts = self._copied(name, entry.parts, stored, writer)
            except RunDirectoryError as error:
                problems.append(error)
                self._files[name] = replace(entry, state=DAMAGED)
            else:
                self._files[name] = replace(entry, parts=parts)
        return num_read, problems

    def _stored(self, parts: Iterable[Part]) -> tuple[int, dict[Part, bytes]]:
        """Read parts of archives as they are stored there. Returns the number of bytes that the store sent, too."""
        stored, num_read = dict.fromkeys(parts, b""), 0
        for read in reads((archive_name(self._folder, part.archive), part, None) for part in stored.copy()):
            first, last = read[0][1], read[-1][1]
            content, sent = self._content(first.archive, start=first.at, end=last.at + last.stored)
            stored |= {part: content[part.at - first.at :][: part.stored] for _, part, _ in read}
            num_read += sent
        return num_read, stored

    def _copied(
        self, name: str, parts: Iterable[Part], stored: Mapping[Part, bytes], writer: ArchiveWriter
    ) -> tuple[Part, ...]:
        """The parts of a file, those that were read joined in the next archive. Raises RunDirectoryError."""
        copied: list[Part] = []
        for is_read, group in groupby(parts, key=stored.__contains__):
            run = list(group)
            if is_read:
                contents = [unpacked(stored[part], part, self._place_of(part.archive)) for part in run]
                copied.append(writer.add(name, b"".join(contents), start=run[0].start))
            else:
                copied += run
        return tuple(copied)

    def _content(self, number: int, *, start: int, end: int) -> tuple[bytes, int]:
        """Bytes of an archive, and how many of them the store sent."""
        if number in self._kept:
            return self._kept[number][start:end], 0
        content = self._remote.read_part(archive_name(self._folder, number), start=start, end=end)
        return content, len(content)

    def _next(self) -> ArchiveWriter:
        if self._writer is None:
            self._last_number = max(self._wall_ns() // MS, self._last_number) + 1 + secrets.randbelow(RANDOM_MS)
            self._writer = ArchiveWriter(self._last_number)
        return self._writer

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.drop()
        self._writer = None

    def _sizes(self) -> Mapping[str, RemoteFile]:
        try:
            return self._remote.sizes(self._folder)
        except FileNotFoundError:
            return {}

    def _remove_dead(self, *, at_once: bool) -> None:
        """Remove archives that no index needs. A command may be reading them, so they stay for a while.

        What cannot be removed is tried again after the next commit.
        """
        now_ns = self._wall_ns()
        for name in [name for name, since_ns in self._dead.items() if at_once or now_ns - since_ns >= GRACE_NS]:
            try:
                self._remote.remove(name)
            except ServerError as error:
                if not self._has_warned:
                    logger.warning("archives that are not needed any more stay, and take room: %s", error)
                self._has_warned = True
                return
            del self._dead[name]

    def _place_of(self, number: int) -> str:
        return f"{self.place}/{archive_name(self._folder, number)}"


def _live(entries: Iterable[Entry]) -> dict[int, int]:
    """Bytes of each archive that are needed."""
    live: dict[int, int] = {}
    for part in _parts(entries):
        live[part.archive] = live.get(part.archive, 0) + part.stored
    return live


def _parts(entries: Iterable[Entry]) -> Iterable[Part]:
    return (part for entry in entries for part in entry.parts)


def _numbers(names: Iterable[str]) -> set[int]:
    return {number for name in names if (number := archive_number(name)) is not None}
