"""Destinations of shipped files, and a directory that hosts share. `archiving` has those behind a URL."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from traincope.private_files import file_mode, make_directory
from traincope.whole_files import write_whole


class Target(Protocol):
    """Files by relative names with slashes. Methods raise OSError or ServerError if the place cannot be used."""

    place: str
    """The directory or URL."""
    gathers: bool
    """Whether files arrive together, at the next `commit`. Otherwise they arrive as soon as they are written."""

    @property
    def gathered_bytes(self) -> int:
        """Bytes that wait for the next `commit`."""

    def begin(self, folder: str) -> Mapping[str, str] | None:
        """Begin with the files of a host: those in this folder and of the run. Returns the states of those that have
        arrived; None if this place does not know them.
        """

    def commit(self, states: Mapping[str, str], *, last: bool = False) -> int:
        """Let what was gathered arrive, all or nothing. `states`: of those files. `last`: this process ends. Returns
        the number of bytes sent.
        """

    def read(self, name: str) -> bytes | None:
        """Read a small file; None if it does not exist."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a file."""

    def append(self, name: str, content: bytes, *, at: int) -> bool:
        """Extend a file that has `at` bytes. False if it has not."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""

    def folders(self, name: str) -> list[str]:
        """Names of the folders in a folder, sorted. Empty if it does not exist."""


class Directory:
    """A directory that several hosts share."""

    gathers = False
    gathered_bytes = 0

    def __init__(self, root: Path) -> None:
        self.place = str(root)
        self._root = root

    def begin(self, folder: str) -> None:
        """Nothing is known here."""

    def commit(self, states: Mapping[str, str], *, last: bool = False) -> int:  # noqa: ARG002 - all has arrived
        return 0

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        path = self._root / name
        make_directory(path.parent, exist_ok=True)
        write_whole(path, content)

    def append(self, name: str, content: bytes, *, at: int) -> bool:
        try:
            descriptor = os.open(self._root / name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, file_mode())
        except FileNotFoundError:
            return False
        with open(descriptor, "wb", buffering=0) as file:
            if os.fstat(descriptor).st_size != at:
                return False
            file.write(content)
        return True

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def folders(self, name: str) -> list[str]:
        folder = self._root / name
        return sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
