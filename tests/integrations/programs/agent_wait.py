"""A data set that lets the agent publish numbers of the steps under way, on any machine."""

import os
import time
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 120


class WaitingRows(list[Any]):
    """Rows of which rank 0 receives one only once the node's agent has published numbers of earlier steps."""

    def __init__(self, rows: list[Any], folder: str, tracker: str, *, before: int) -> None:
        """`before`: number of rows that rank 0 receives before it waits. Without a tracker nothing waits."""
        super().__init__(rows)
        self._folder = Path(folder)
        self._left = before if tracker != "none" and os.environ["RANK"] == "0" else -1

    def __getitem__(self, index: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self._wait()
        return super().__getitem__(index)

    def _wait(self) -> None:
        until = time.monotonic() + TIMEOUT_SECONDS
        while not list(self._folder.glob("run/attempt-000/scalars-*.json")):
            if time.monotonic() > until:
                raise TimeoutError("the agent publishes no numbers")
            time.sleep(0.1)
