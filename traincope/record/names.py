"""Strings -> small numbers, each string written once to a side file."""

import json
import os
import threading
from pathlib import Path

MAX_NAMES = 65_536
MAX_CHARACTERS = 1_024
OTHER = "<other names>"
"""Number 0: what every name becomes after the first `MAX_NAMES`, so that memory stays bounded."""


class LineFile:
    """Appends whole JSON lines; every line is in the page cache when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, value: object) -> None:
        os.write(self._descriptor, json.dumps(value).encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


class Names:
    """Interned strings of one process."""

    def __init__(self, path: Path) -> None:
        self._file = LineFile(path)
        self._lock = threading.Lock()
        self.numbers: dict[str, int] = {}
        """Name -> number, for the hot path's lookup; `intern` fills it."""
        self.intern(OTHER)

    def intern(self, name: str) -> int:
        number = self.numbers.get(name)
        if number is not None:
            return number
        with self._lock:
            return self._add(name)

    def _add(self, name: str) -> int:
        kept = name[:MAX_CHARACTERS]
        number = self.numbers.get(kept)
        if number is None:
            if len(self.numbers) >= MAX_NAMES:
                return 0
            number = len(self.numbers)
            self._file.append(kept)
            self.numbers[kept] = number
        return number

    def close(self) -> None:
        self._file.close()
