"""Files of a run that are in archives behind a URL. Only the bytes that a command needs are read."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from traincope.errors import RunDirectoryError
from traincope.store.places.archives import (
    DIRECTORY,
    SUFFIX,
    Entry,
    Index,
    Part,
    archive_name,
    archive_number,
    newest_archives,
    newest_index,
    read_indexes,
    readable,
    reads,
)
from traincope.store.places.archives import unpacked as bytes_of
from traincope.store.places.remote import RemoteFile, RemoteFiles

logger = logging.getLogger(__name__)

STATE = re.compile(r"\d+-(\d{1,19})-\d+")
"""State of a file that was whole when it was shipped: size, time of the last change in ns, inode."""


class ArchivedFiles:
    """The files in the archives of a run, by name."""

    def __init__(
        self, remote: RemoteFiles, listed: Mapping[str, RemoteFile], *, kept: dict[str, bytes] | None = None
    ) -> None:
        """Read the indexes of the newest archives among the `listed` files of the run. `kept`: as of `read_indexes`.

        Raises FileNotFoundError if the run changed meanwhile, ServerError.
        """
        self._remote = remote
        self._entries: dict[str, tuple[str, Entry]] = {}
        newest = newest_archives(listed)
        names = {folder: archive_name(folder, number) for folder, number in newest.items()}
        indexes = _indexes(remote, names, listed, kept=kept)
        self.files: dict[str, RemoteFile] = {}
        for folder, index in sorted(indexes.items(), key=lambda each: each[1].number):
            present = {number for number in index.archives if archive_name(folder, number) in listed}
            whole = readable(index, present)
            if len(whole) < len(index.files):
                logger.warning(
                    "%d files are left out: %s lacks archives that hold them, e.g. of %s; ship the run again from its "
                    "host, if it still has its records",
                    len(index.files) - len(whole),
                    f"{remote.url}/{folder}",
                    min(index.files.keys() - whole.keys()),
                )
            for name, entry in whole.items():
                self._entries[name] = folder, entry
                self.files[name] = RemoteFile(
                    size=entry.size, version=entry.version, modified_seconds=_modified_seconds(entry, index.number)
                )

    def place(self, name: str) -> tuple[str, int, int]:
        """Where a file begins, for an order in which neighbours are read at once."""
        folder, entry = self._entries[name]
        first = entry.parts[0]
        return folder, first.archive, first.at

    def fetch(self, names: Mapping[str, Path]) -> None:
        """Write files to paths of this machine, whose directories exist. Raises as above, and OSError."""
        parts: list[tuple[str, Part, Path]] = []
        for name, path in names.items():
            path.touch()
            folder, entry = self._entries[name]
            parts += [(archive_name(folder, part.archive), part, path) for part in entry.parts]
        grouped = list(reads(parts))
        calls = [
            self._remote.begin_part(read[0][0], start=read[0][1].at, end=read[-1][1].at + read[-1][1].stored)
            for read in grouped
        ]
        try:
            for read, call in zip(grouped, calls, strict=True):
                content = self._remote.end_part(call)
                for archive, part, path in read:
                    stored = content[part.at - read[0][1].at :][: part.stored]
                    with path.open("r+b") as file:
                        file.seek(part.start)
                        file.write(bytes_of(stored, part, f"{self._remote.url}/{archive}"))
        finally:
            for call in calls:
                call.give_up()


def _indexes(
    remote: RemoteFiles, names: Mapping[str, str], listed: Mapping[str, RemoteFile], *, kept: dict[str, bytes] | None
) -> dict[str, Index]:
    """The newest index of each host; if one is damaged, the newest of its host that is not."""
    try:
        sizes = {name: listed[name].size for name in names.values()}
        return dict(zip(names, read_indexes(remote, sizes, kept=kept), strict=True))
    except RunDirectoryError:
        sizes = {name: file.size for name, file in listed.items()}
        return {folder: newest_index(remote, folder, sizes) for folder in names}


def is_archived(run: Path) -> bool:
    """Return whether a directory of this machine is a run that was shipped in archives."""
    return any(run.glob(f"attempt-*/{DIRECTORY}/*/*{SUFFIX}"))


def plain_files(listed: Mapping[str, RemoteFile]) -> dict[str, RemoteFile]:
    """The listed files that are no archives."""
    return {name: file for name, file in listed.items() if archive_number(name) is None}


def _modified_seconds(entry: Entry, number: int) -> float:
    """Wall time of the last change; that of the archive if it is unknown."""
    match = STATE.fullmatch(entry.state)
    return int(match[1]) / 1e9 if match else number / 1e3
