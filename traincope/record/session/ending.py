"""The end of a run: what is recorded of the exception that ended it, and the stop at the process's exit.

Of an exception, type, message and the places of its traceback are recorded, but no source and no local variables. The
message can be left out, because it may hold data of the training.

A run that its `with` block does not leave (entered by hand, or held by a generator) ends with the process. When an
interpreter shuts down, it empties modules while the recorder's hooks would still be called. The exit code of a
`sys.exit(1)` is not visible here: the interpreter has dropped it by then. Only the parent process learns it.
"""

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType, WrapperDescriptorType

from traincope.events import CLEAN

Detail = str | int | list[str]
Stop = Callable[[BaseException | None], object]

RECORDER_FILES = os.path.dirname(os.path.dirname(__file__)) + os.sep

OUT_OF_MEMORY_PHRASES = ("out of memory", "allocate memory", "_STATUS_ALLOC_FAILED")
"""Phrases of torch, CUDA's libraries and the kernel for a shortage of memory.

They are needed where the type of the exception is general: a failed allocation on a CPU is a RuntimeError.
"""
COMMUNICATION_ERRORS = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError"})
"""Types of torch's errors of communication. gloo's are general, and name a file of gloo."""
GLOO_FILE = "gloo/"
MAX_MESSAGE_CHARACTERS = 2_000
"""Longer messages lose their middle: a data loader's ends with the traceback of its worker."""
MAX_FRAMES = 30
"""Number of innermost frames of a traceback that are recorded."""
PLAIN_TYPES = (str, bytes, int, float, bool, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The way a run ended."""

    name: str
    """`clean`, or the name of the exception."""
    details: Mapping[str, Detail] = field(default_factory=dict)
    """`type`, `at`, `message`, `traceback`, `out_of_memory` if the message names a memory shortage, and `communication`
    if communication failed.

    A SystemExit also has its `code` and the exception that was being handled: `handling`, `handling_at`, ...
    """


def ending_of(kind: type[BaseException] | None, error: BaseException | None, *, messages: bool = True) -> Ending:
    """Describe the end of a run from the arguments of `__exit__`. A SystemExit with exit code 0 is clean.

    `messages`: record the messages of exceptions.
    """
    if kind is None or (isinstance(error, SystemExit) and not exit_code(error)):
        return Ending(name=CLEAN)
    details: dict[str, Detail] = {"type": kind.__name__}
    if error is not None:
        details |= _describe(error, messages=messages)
    if isinstance(error, SystemExit):
        details["code"] = exit_code(error)
        if error.__context__ is not None:  # mostly it is the cause of the `sys.exit(1)`
            handled = _describe(error.__context__, messages=messages, prefix="handling_")
            details |= {"handling": type(error.__context__).__name__, **handled}
    return Ending(name=kind.__name__, details=details)


def exit_code(error: SystemExit) -> int:
    """Return the process's exit code: 0 for None, the last 8 bits of a number, 1 for anything else."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _describe(error: BaseException, *, messages: bool, prefix: str = "") -> dict[str, Detail]:
    message = message_of(error) if messages else ""
    return {
        f"{prefix}at": place_of(error.__traceback__),
        **({f"{prefix}message": message} if message else {}),
        f"{prefix}traceback": frames_of(error.__traceback__),
        **_memory_shortage(error),
        **_communication(error),
    }


def message_of(error: BaseException) -> str:
    """Return an exception's message, without calling code of the training: a `__str__` of its own is not called."""
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return ""
    args = [arg for arg in error.args if type(arg) in PLAIN_TYPES]
    is_plain = isinstance(type(error).__str__, WrapperDescriptorType) and len(args) == len(error.args)
    text = str(error) if is_plain else ", ".join(map(str, args))
    half = MAX_MESSAGE_CHARACTERS // 2
    return text if len(text) <= MAX_MESSAGE_CHARACTERS else f"{text[:half]} [...] {text[-half:]}"


def _memory_shortage(error: BaseException) -> dict[str, bool]:
    """Detect a memory shortage from the exception's arguments. `__str__` may be the training's code."""
    if not isinstance(error, RuntimeError | OSError):
        return {}
    names_memory = any(words in part for part in error.args if type(part) is str for words in OUT_OF_MEMORY_PHRASES)
    return {"out_of_memory": True} if names_memory else {}


def _communication(error: BaseException) -> dict[str, bool]:
    """Detect an error of the communication itself: mostly another rank is its cause."""
    by_gloo = isinstance(error, RuntimeError) and any(GLOO_FILE in part for part in error.args if type(part) is str)
    return {"communication": True} if by_gloo or type(error).__name__ in COMMUNICATION_ERRORS else {}


def place_of(traceback: TracebackType | None) -> str:
    """Return file and line of the raise, without the recorder's own frames."""
    places = list(_places(traceback))
    return f"{os.path.basename(places[-1][0])}:{places[-1][1]}" if places else ""


def frames_of(traceback: TracebackType | None) -> list[str]:
    """Return file, line and function of the innermost frames, innermost last."""
    return [f"{path}:{line} in {function}" for path, line, function in _places(traceback)][-MAX_FRAMES:]


def _places(traceback: TracebackType | None) -> Iterator[tuple[str, int, str]]:
    """Yield file, line and function of each frame that is not the recorder's, outermost first."""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith(RECORDER_FILES):
            yield code.co_filename, traceback.tb_lineno, code.co_name
        traceback = traceback.tb_next


def fatal_error() -> BaseException | None:
    """Return the exception that ended the main thread, if one did."""
    return None if is_interactive() else getattr(sys, "last_value", None)


def is_interactive() -> bool:
    """Return whether a person types (a Python prompt, IPython, a notebook). An error there ends no process."""
    return hasattr(sys, "ps1")


def stop_at_exit(stop: Stop) -> Callable[[], None]:
    """Call `stop` before the interpreter shuts down, with the exception that ended the main thread.

    Returns a function that cancels this.
    """

    def end() -> None:
        stop(fatal_error())

    atexit.register(end)
    return lambda: atexit.unregister(end)
