"""Observer that keeps the scalars of the latest steps in a file, from which the training passes them to its tracker."""

import json
import logging
from contextlib import suppress
from pathlib import Path

from traincope.live.window import Window
from traincope.metrics.scalars import scalars
from traincope.store.layout import attempt_directory, scalars_file
from traincope.whole_files import write_whole

logger = logging.getLogger(__name__)


class LatestScalars:
    """Writes one small file per look that reduced steps. The file exists as long as its agent."""

    def __init__(self, *, host: str) -> None:
        self._host = host
        self._path: Path | None = None

    def observe(self, window: Window) -> None:
        latest = None if window.analysis is None else scalars(window.analysis)
        if latest is None:
            return
        self._path = attempt_directory(window.run, window.attempt) / scalars_file(self._host)
        try:
            write_whole(self._path, json.dumps({"step": latest.step, "values": latest.values}).encode())
        except OSError as error:
            logger.warning("%s cannot be written: %s", self._path, error.strerror)

    def close(self) -> None:
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
