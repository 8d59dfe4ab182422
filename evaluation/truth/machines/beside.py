"""A background thread during a block, in an otherwise idle process."""

import threading
from types import TracebackType
from typing import Self


class Background:
    """Calls `work` from the begin of the block until `over` is set at its end."""

    def __init__(self, name: str) -> None:
        self.over = threading.Event()
        self._thread = threading.Thread(target=self.work, name=name, daemon=True)

    def work(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.over.set()
        self._thread.join()
