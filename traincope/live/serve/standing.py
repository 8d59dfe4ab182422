"""Observer that keeps MFU and goodput of the running job in a small file, for lists of runs."""

import json
import logging
from time import monotonic

from traincope.live.serve.exporters import Source
from traincope.live.window import Window
from traincope.metrics.catalogue import GOODPUT, MFU
from traincope.store.layout import STANDING_FILE, rank_directory
from traincope.whole_files import write_whole

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 60.0


class Standing:
    """Writes the file of the host's first rank once a minute and at the end. It stays."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._next = 0.0

    def observe(self, window: Window) -> None:
        if not window.ranks or (monotonic() < self._next and not window.last):
            return
        names = {MFU.name: "mfu", GOODPUT.name: "goodput"}
        values = {names[each.metric.name]: each.value for each in self._source() if each.metric.name in names}
        if not values:
            return
        self._next = monotonic() + INTERVAL_SECONDS
        first = min(status.rank for status in window.ranks)
        path = rank_directory(window.run, attempt=window.attempt, rank=first) / STANDING_FILE
        try:
            write_whole(path, json.dumps(values).encode() + b"\n")
        except OSError as error:
            logger.warning("%s cannot be written: %s", path, error.strerror)

    def close(self) -> None:
        """Do nothing: the last window wrote the file."""
