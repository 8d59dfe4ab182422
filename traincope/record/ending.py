"""A run that nobody leaves (entered by hand, or held by a generator) ends with the process.

At the end of an interpreter modules are emptied while hooks of ours would still be called. A
`sys.exit(1)` cannot be seen from here: the interpreter has forgotten it by then, and only whoever
waits for the process learns its exit code.
"""

import atexit
import sys
from collections.abc import Callable

Stop = Callable[[BaseException | None], object]


def stop_at_exit(stop: Stop) -> Callable[[], None]:
    """Call `stop` before the interpreter shuts down, with what ended the main thread; returns how to take that back."""

    def end() -> None:
        stop(getattr(sys, "last_value", None))

    atexit.register(end)
    return lambda: atexit.unregister(end)
