"""The file of a rank's state checks. It keeps the newest ones within a bound of bytes."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from traincope.record.segments.names import LineFile
from traincope.store.job.state_checks import (
    MAX_FILE_BYTES,
    HeldCheck,
    Layout,
    StateCheck,
    check_line,
    held_line,
    layout_line,
)
from traincope.store.layout import OLD_STATE_CHECKS_FILE, STATE_CHECKS_FILE


class CheckFile:
    """Writer of the file. A line is in the page cache when `write` returns, as for `LineFile`."""

    def __init__(self, directory: Callable[[], Path]) -> None:
        """`directory`: returns the rank's directory, which is renamed once the rank is known."""
        self._directory = directory
        self._file: LineFile | None = None
        self._next = 0
        self._bytes = 0
        self._layouts: dict[Layout, int] = {}

    def write(self, check: StateCheck | HeldCheck) -> None:
        """Append a check, and its layout if the file lacks it. Raises OSError if no file can be created."""
        self._make_room()
        number = self._layouts.get(check.layout)
        if number is None:
            number = self._layouts[check.layout] = self._next
            self._append(layout_line(number, check.layout))
        self._append(check_line(number, check) if isinstance(check, StateCheck) else held_line(number, check))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _make_room(self) -> None:
        path = self._directory() / STATE_CHECKS_FILE
        if self._file is not None and self._bytes >= MAX_FILE_BYTES:
            self.close()
            os.replace(path, path.with_name(OLD_STATE_CHECKS_FILE))
        if self._file is None:
            self._file, self._bytes = LineFile(path), 0
            self._layouts.clear()
        self._file.path = path
        self._file.retry()

    def _append(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":"))
        if self._file is not None:
            self._file.append(self._next, text)
        self._next, self._bytes = self._next + 1, self._bytes + len(text)
