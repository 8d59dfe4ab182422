"""Destinations of shipped files: a directory that hosts share, or a URL. Each file appears whole."""

import os
from pathlib import Path
from typing import Protocol

from traincope.private_files import file_mode, make_directory
from traincope.store.places.remote import RemoteFiles
from traincope.whole_files import write_whole


class Target(Protocol):
    """Files by relative names with slashes. Methods raise OSError or ServerError if the place cannot be used."""

    place: str
    """The directory or URL."""
    appends: bool
    """Whether files can grow in place."""

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

    appends = True

    def __init__(self, root: Path) -> None:
        self.place = str(root)
        self._root = root

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


class Store:
    """A place behind a URL."""

    appends = False

    def __init__(self, remote: RemoteFiles) -> None:
        self.place = remote.url
        self._remote = remote

    def read(self, name: str) -> bytes | None:
        try:
            return self._remote.read(name)
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        self._remote.write(name, content)

    def append(self, name: str, content: bytes, *, at: int) -> bool:  # noqa: ARG002 - objects cannot grow
        return False

    def remove(self, name: str) -> None:
        self._remote.remove(name)

    def folders(self, name: str) -> list[str]:
        return self._remote.folders(name)
