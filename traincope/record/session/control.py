"""Control of a running job by files in its run directory: the level, and requested windows.

Each rank reads both about once a second, between two steps. It waits for no other rank. Any user may write the files,
so only a few bytes of them are read, and only of regular files: opening a pipe would stop the training.
"""

import os
from pathlib import Path

from traincope.private_files import read_regular
from traincope.record.instrumentation.asynchronous import is_asynchronous
from traincope.record.session.rendezvous import Place
from traincope.store.job.requests import WindowRequest, read_latest_requests
from traincope.store.layout import LEVEL_FILE, REQUESTS_FILE

MAX_LEVEL_BYTES = 16
"""Number of bytes read from the level file."""


class Control:
    """Requests in the files at the latest look."""

    def __init__(self) -> None:
        self.level: int | None = None
        """The requested level; None without a valid one."""
        self.requests: tuple[WindowRequest, ...] = ()
        """Requests of this attempt."""
        self._seen: tuple[int, int] | None = None
        """Size and time of the file of requests at the latest look."""

    def look(self, place: Place) -> None:
        """Read the files."""
        self.level = _read_level(place.run / LEVEL_FILE)
        self._read_requests(place.run / REQUESTS_FILE, attempt=place.attempt)

    def requests_at(self, step: int) -> tuple[WindowRequest, ...]:
        """Return the requests for windows that contain the step."""
        return tuple(request for request in self.requests if request.covers(step))

    def traces(self, step: int) -> bool:
        """Return whether the step's kernels are requested."""
        return any(request.traces(step) for request in self.requests)

    def traces_from(self, step: int) -> bool:
        """Return whether kernels of the step before, of this step or of a later one are requested."""
        return any(request.kernels and step <= request.last_step + 1 for request in self.requests)

    def _read_requests(self, file: Path, *, attempt: int) -> None:
        try:
            status = file.stat()
            seen = status.st_size, status.st_mtime_ns
            if seen != self._seen:
                self.requests, self._seen = read_latest_requests(file, attempt=attempt), seen
        except OSError as error:
            self.requests, self._seen = (), None
            if is_asynchronous(error):
                raise


def _read_level(file: Path) -> int | None:
    try:
        text = read_regular(file, last_bytes=MAX_LEVEL_BYTES, flags=os.O_NOFOLLOW).strip()
    except OSError as error:
        if is_asynchronous(error):
            raise
        return None
    return int(text) if len(text) == 1 and text.isdigit() else None
