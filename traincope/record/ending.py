"""A run that nobody leaves (entered by hand, or held by a generator) ends with the process.

At the end of an interpreter modules are emptied while hooks of ours would still be called.
"""

import atexit
import sys
from collections.abc import Callable
from types import TracebackType

Stop = Callable[[type[BaseException] | None, TracebackType | None], object]


def stop_at_exit(stop: Stop) -> Callable[[], None]:
    """Call `stop` before the interpreter shuts down, with what ended the main thread; returns how to take that back."""

    def end() -> None:
        error = getattr(sys, "last_value", None)
        stop(None if error is None else type(error), None if error is None else error.__traceback__)

    atexit.register(end)
    return lambda: atexit.unregister(end)
