"""Exceptions of the training that Python raises inside the recorder's code.

The training's signal handlers run between any two instructions, also between the recorder's, and so do exceptions that
one thread raises in another. Neither is an error of the code that they interrupt.
"""

import sys
from collections.abc import Iterator
from inspect import CO_VARARGS
from opcode import opmap
from types import FrameType, FunctionType, TracebackType

KNOWN = sys.stdlib_module_names | {"builtins", "traincope", "torch", "numpy"}
"""Packages whose code the recorder calls, and whose exceptions may be errors of a hook."""
RAISED_BY_C = (StopIteration, StopAsyncIteration, MemoryError)
"""Exceptions that functions in C raise without arguments."""


def is_asynchronous(error: BaseException) -> bool:
    """Return whether the code that an exception has just left did not raise it.

    Python calls a signal handler, and a trace function, with the frame that it interrupts. An exception from another
    thread is made without arguments, and no statement raises it.
    """
    innermost = None
    for innermost in _tracebacks(error):
        if _got_its_caller(innermost.tb_frame):
            return True
    if innermost is None or _package(innermost.tb_frame.f_globals.get("__name__")) not in KNOWN or _raises(innermost):
        return False
    if _package(type(error).__module__) in KNOWN:
        return not error.args and not isinstance(error, RAISED_BY_C)
    return not error.args or isinstance(type(error).__init__, FunctionType)


class suppressed:  # noqa: N801 - used like `contextlib.suppress`
    """Suppress exceptions of these kinds, as `contextlib.suppress` does, unless they are asynchronous."""

    __slots__ = ("_kinds",)

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool:
        return isinstance(error, self._kinds) and not is_asynchronous(error)


def _tracebacks(error: BaseException) -> Iterator[TracebackType]:
    """Yield the places that an exception has passed, from the one that caught it to the one that raised it."""
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _got_its_caller(frame: FrameType) -> bool:
    """Return whether an argument of the frame's function is the frame that called it."""
    code, caller, values = frame.f_code, frame.f_back, frame.f_locals
    num_named = code.co_argcount + code.co_kwonlyargcount
    arguments = [values.get(name) for name in code.co_varnames[:num_named]]
    if code.co_flags & CO_VARARGS:
        arguments.extend(values.get(code.co_varnames[num_named], ()))
    return caller is not None and any(argument is caller for argument in arguments)


def _raises(place: TracebackType) -> bool:
    """Return whether the instruction there is a `raise` statement."""
    return place.tb_frame.f_code.co_code[place.tb_lasti] == opmap["RAISE_VARARGS"]


def _package(module: object) -> str:
    return str(module).partition(".")[0]
