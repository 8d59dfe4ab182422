"""The end of a run: what is recorded of the exception that ended it, and the stop at the process's exit.

The message of an exception is never recorded: it may hold data of the training.

A run that its `with` block does not leave (entered by hand, or held by a generator) ends with the process. When an
interpreter shuts down, it empties modules while the recorder's hooks would still be called. The exit code of a
`sys.exit(1)` is not visible here: the interpreter has dropped it by then. Only the parent process learns it.
"""

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType

from traincope.events import CLEAN

Stop = Callable[[BaseException | None], object]

RECORDER_FILES = os.path.dirname(os.path.dirname(__file__)) + os.sep

OUT_OF_MEMORY_PHRASES = ("out of memory", "allocate memory", "_STATUS_ALLOC_FAILED")
"""Phrases of torch, CUDA's libraries and the kernel for a shortage of memory.

They are needed where the type of the exception is general: a failed allocation on a CPU is a RuntimeError.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The way a run ended."""

    name: str
    """`clean`, or the name of the exception."""
    details: Mapping[str, str | int] = field(default_factory=dict)
    """`type`, `at`, and `out_of_memory` if the message names a memory shortage.

    A SystemExit also has its `code` and the exception that was being handled: `handling`, `handling_at`.
    """


def ending_of(kind: type[BaseException] | None, error: BaseException | None) -> Ending:
    """Describe the end of a run from the arguments of `__exit__`. A SystemExit with exit code 0 is clean."""
    if kind is None or (isinstance(error, SystemExit) and not exit_code(error)):
        return Ending(name=CLEAN)
    details: dict[str, str | int] = {"type": kind.__name__}
    if error is not None:
        details |= {"at": place_of(error.__traceback__), **_memory_shortage(error)}
    if isinstance(error, SystemExit):
        details |= {"code": exit_code(error), **_handled(error.__context__)}
    return Ending(name=kind.__name__, details=details)


def exit_code(error: SystemExit) -> int:
    """Return the process's exit code: 0 for None, the last 8 bits of a number, 1 for anything else."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _handled(error: BaseException | None) -> dict[str, str | int]:
    """Describe the exception that was being handled at a SystemExit: mostly it is the cause of the `sys.exit(1)`."""
    if error is None:
        return {}
    return {"handling": type(error).__name__, "handling_at": place_of(error.__traceback__), **_memory_shortage(error)}


def _memory_shortage(error: BaseException) -> dict[str, bool]:
    """Detect a memory shortage from the exception's arguments. `__str__` may be the training's code."""
    if not isinstance(error, RuntimeError | OSError):
        return {}
    names_memory = any(words in part for part in error.args if type(part) is str for words in OUT_OF_MEMORY_PHRASES)
    return {"out_of_memory": True} if names_memory else {}


def place_of(traceback: TracebackType | None) -> str:
    """Return file and line of the raise, without the recorder's own frames. No source and no locals are recorded."""
    place = ""
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if not path.startswith(RECORDER_FILES):
            place = f"{os.path.basename(path)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def stop_at_exit(stop: Stop) -> Callable[[], None]:
    """Call `stop` before the interpreter shuts down, with the exception that ended the main thread.

    Returns a function that cancels this.
    """

    def end() -> None:
        stop(getattr(sys, "last_value", None))

    atexit.register(end)
    return lambda: atexit.unregister(end)
