"""Strings -> small numbers, each string written once to a side file under its number.

Nothing here takes a lock: a signal handler may intern in the middle of another intern. Two threads
that meet at the same new name may give it two numbers; both are written, and both mean it.
"""

import json
import os
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any

MAX_CHARACTERS = 1_024
"""Of one name; the rest is cut off."""
MAX_NAMES_BYTES = 8 << 20
"""Of all names together: memory and disk stay bounded whatever a training calls its spans."""
MAX_WAITING = 4_096
"""Lines kept for a disk that is full at the moment."""
ENTRY_BYTES = 128
"""What a name costs besides its characters."""
OTHER = "<other names>"
"""Number 0: what a name becomes once `MAX_NAMES_BYTES` are used."""

MAX_DETAILS_BYTES = 16 << 20
"""Of the details of all events of a process."""
MAX_DETAIL_CHARACTERS = 16_384
"""Of one event's details."""


class LineFile:
    """Appends numbered JSON lines, `[number, value]`; each is in the page cache when `append` returns.

    A line that a full disk refuses is kept and tried again; `lost` counts those that could not be kept.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._waiting: deque[bytes] = deque()
        self._torn = False
        """Whether the file ends in the middle of a line."""
        self.lost = 0

    def append(self, number: int, value: str) -> None:
        """`value` is JSON already."""
        line = f"[{number}, {value}]\n".encode()
        if self._waiting or not self._write(line):
            self._keep(line)

    def retry(self) -> None:
        """Write what was refused before, as far as that goes now."""
        while self._waiting:
            line = self._waiting.popleft()
            if not self._write(line):
                self._waiting.appendleft(line)
                return

    def close(self) -> None:
        self.retry()
        self.lost += len(self._waiting)
        os.close(self._descriptor)

    def _write(self, line: bytes) -> bool:
        whole = b"\n" + line if self._torn else line
        try:
            written = os.write(self._descriptor, whole)
        except OSError:
            return False
        self._torn = written < len(whole)
        return not self._torn

    def _keep(self, line: bytes) -> None:
        if len(self._waiting) < MAX_WAITING:
            self._waiting.append(line)
        else:
            self.lost += 1


class Names:
    """Interned strings of one process."""

    def __init__(self, path: Path) -> None:
        self.file = LineFile(path)
        self._next = count()
        self._bytes_left = MAX_NAMES_BYTES
        self.refused = 0
        """Names that became `OTHER` for want of room."""
        self.numbers: dict[str, int] = {}
        """Name -> number, for the hot path's lookup; `intern` fills it."""
        self.intern(OTHER)

    def intern(self, name: str) -> int:
        number = self.numbers.get(name)
        return self._add(str(name)[:MAX_CHARACTERS]) if number is None else number

    def _add(self, kept: str) -> int:
        number = self.numbers.get(kept)
        if number is not None:
            return number
        if self._bytes_left < 0:
            self.refused += 1
            return 0
        self._bytes_left -= len(kept) + ENTRY_BYTES
        number = next(self._next)
        self.file.append(number, json.dumps(kept))
        return self.numbers.setdefault(kept, number)


class Details:
    """The details of events: written and forgotten, for hardly two are alike."""

    def __init__(self, path: Path) -> None:
        self.file = LineFile(path)
        self._next = count(1)
        self._bytes_left = MAX_DETAILS_BYTES
        self.refused = 0
        """Events that stand without their details for want of room."""

    def add(self, details: dict[str, Any]) -> int:
        """Their number; 0 where there is no room for them."""
        text = json.dumps(details, default=repr, skipkeys=True)
        if len(text) > MAX_DETAIL_CHARACTERS:
            text = json.dumps({"cut_off": text[: MAX_DETAIL_CHARACTERS // 2]})
        if self._bytes_left < len(text):
            self.refused += 1
            return 0
        self._bytes_left -= len(text)
        number = next(self._next)
        self.file.append(number, text)
        return number
