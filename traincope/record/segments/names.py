"""Side files: strings and details of events get small numbers, and each is written once under its number.

Nothing here takes a lock: a signal handler may intern a name in the middle of another intern. Two threads that meet at
the same new name may give it two numbers. Both are written, and both are valid.
"""

import json
import os
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any

from traincope.private_files import open_regular
from traincope.record.instrumentation.asynchronous import is_asynchronous

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
MAX_CHARACTERS = 1_024
"""Maximum length of one name; the rest is cut off."""
MAX_NAMES_BYTES = 8 << 20
"""Maximum size of all names together: memory and disk stay bounded whatever a training names its spans."""
MAX_WAITING = 4_096
"""Maximum number of lines kept while the disk is full."""
ENTRY_BYTES = 128
"""Memory per name besides its characters."""
OTHER = "<other names>"
"""Number 0: the name of every further string once `MAX_NAMES_BYTES` are used."""

MAX_DETAILS_BYTES = 16 << 20
"""Maximum size of the details of all events of a process."""
MAX_DETAIL_CHARACTERS = 16_384
"""Maximum size of one event's details."""


class LineFile:
    """Append numbered JSON lines, `[number, value]`. A line is in the page cache when `append` returns.

    The file is opened for each line: the training could close a number that stayed open, and use it for a file of its
    own. A line that a full disk refuses is kept and retried. `lost` counts the lines that could not be kept.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be created."""
        self.path = path
        """It changes with the name of its directory."""
        os.close(open_regular(path, APPEND))
        self._waiting: deque[bytes] = deque()
        self._torn = False
        """True if the file ends in the middle of a line."""
        self._over = False
        self.lost = 0

    def append(self, number: int, value: str) -> None:
        """Append a line. `value` is JSON already."""
        line = f"[{number}, {value}]\n".encode()
        if self._over:
            return
        if self._waiting or not self._write(line):
            self._keep(line)

    def retry(self) -> None:
        """Write the refused lines, as far as the disk accepts them now."""
        while self._waiting:
            line = self._waiting.popleft()
            if not self._write(line):
                self._waiting.appendleft(line)
                return

    def close(self) -> None:
        self.retry()
        self.lost += len(self._waiting)
        self._over = True

    def abandon(self) -> None:
        """Leave the file to the parent, in a forked child."""
        self._waiting.clear()
        self._over = True

    def _write(self, line: bytes) -> bool:
        whole = b"\n" + line if self._torn else line
        try:
            descriptor = open_regular(self.path, APPEND)
            try:
                written = os.write(descriptor, whole)
            finally:
                os.close(descriptor)
        except OSError as error:
            if is_asynchronous(error):
                raise
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
        """Names that became `OTHER` because `MAX_NAMES_BYTES` were used."""
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
    """The details of events: written and dropped from memory, because hardly two are alike."""

    def __init__(self, path: Path) -> None:
        self.file = LineFile(path)
        self._next = count(1)
        self._bytes_left = MAX_DETAILS_BYTES
        self.refused = 0
        """Events without their details because `MAX_DETAILS_BYTES` were used."""

    def add(self, details: dict[str, Any]) -> int:
        """Write the details and return their number; 0 if the limit is reached."""
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
