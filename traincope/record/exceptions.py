"""What is written down of an exception that ends a run: never its message, which may hold data."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType

from traincope.events import CLEAN

OWN_FILES = os.path.dirname(__file__)

NO_MEMORY = ("out of memory", "allocate memory", "_STATUS_ALLOC_FAILED")
"""Words of torch, CUDA's libraries and the kernel where their exception's type tells nothing: on a CPU, too, an
allocation that fails is a RuntimeError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run was left."""

    name: str
    """`clean`, or the exception's."""
    details: Mapping[str, str | int] = field(default_factory=dict)
    """`type` and `at`, `out_of_memory` where its message says so; of a SystemExit also its `code`, and what was being
    handled: `handling`, `handling_at`.
    """


def ending_of(kind: type[BaseException] | None, error: BaseException | None) -> Ending:
    """Of what leaves a run, as `__exit__` is told; a SystemExit that asks for exit code 0 is clean."""
    if kind is None or (isinstance(error, SystemExit) and not exit_code(error)):
        return Ending(name=CLEAN)
    details: dict[str, str | int] = {"type": kind.__name__}
    if error is not None:
        details |= {"at": place_of(error.__traceback__), **_shortage(error)}
    if isinstance(error, SystemExit):
        details |= {"code": exit_code(error), **_handled(error.__context__)}
    return Ending(name=kind.__name__, details=details)


def exit_code(error: SystemExit) -> int:
    """What the process's will be: None is 0, a number its last 8 bits, and anything else 1."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _handled(error: BaseException | None) -> dict[str, str | int]:
    """`sys.exit(1)` in an `except` mostly says of the error that was caught there that it is the end."""
    if error is None:
        return {}
    return {"handling": type(error).__name__, "handling_at": place_of(error.__traceback__), **_shortage(error)}


def _shortage(error: BaseException) -> dict[str, bool]:
    """Only what they were made of is looked at: to ask for its message is to call the training's code."""
    if not isinstance(error, RuntimeError | OSError):
        return {}
    told = any(words in part for part in error.args if type(part) is str for words in NO_MEMORY)
    return {"out_of_memory": True} if told else {}


def place_of(traceback: TracebackType | None) -> str:
    """File and line where it was raised, our own hooks around torch's calls aside; no source, no locals."""
    place = ""
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if os.path.dirname(path) != OWN_FILES:
            place = f"{os.path.basename(path)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
