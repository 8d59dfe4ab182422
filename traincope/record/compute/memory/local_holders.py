"""Local variables of the functions that run, as holders of tensors, and the lines of them that make a holder grow.

Frames hold their variables out of the collector's sight. They are read for a census only, between two steps.
"""

import dis
import os
import sys
from collections.abc import Iterator, Sequence
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType

GROWING = frozenset({"append", "appendleft", "add", "extend", "insert", "update", "setdefault"})
"""Methods by which containers grow."""
MAX_AHEAD = 6
"""Number of instructions after a container is loaded within which something is put into it."""
READS_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""Functions by which another one may keep the dictionary of its variables, which up to Python 3.12 is one per frame."""
OWN_REFERENCES = 3
"""References to that dictionary that are known: the frame's, the variable's here, and that of the call that counts."""
MAX_FRAMES = 32


def local_holder(held: object) -> str | None:
    """Name the local variable that holds an object, and its function; None if no function on this thread does."""
    for frame in _frames():
        name = _variable(frame, held)
        if name is not None:
            return f"{name} of {frame.f_code.co_qualname}(){place_of_growth(name)}"
    return None


def place_of_growth(name: str) -> str:
    """Return ` at train.py:24` for the line at which running code puts something into `name`; empty if none is seen."""
    for frame in _frames():
        line = _growing_line(frame, name)
        if line is not None:
            return f" at {os.path.basename(frame.f_code.co_filename)}:{line}"
    return ""


def _frames() -> Iterator[FrameType]:
    """Yield the frames of this thread outside of this package, the innermost first."""
    frame: FrameType | None = sys._getframe()
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        if not frame.f_globals.get("__name__", "").startswith("traincope."):
            yield frame
        frame = frame.f_back


def _variable(frame: FrameType, held: object) -> str | None:
    """Return the name of the function's variable. A module's variables are found as the module's.

    Up to Python 3.12 the frame keeps the dictionary that it returns here, and updates it: it is emptied, so that it
    keeps no tensor alive. Frames whose dictionary the training or a debugger may hold are left alone.
    """
    code = frame.f_code
    if not code.co_flags & CO_OPTIMIZED or sys.gettrace() is not None or _reads_locals(code):
        return None
    variables = frame.f_locals
    name = next((str(key) for key, value in variables.items() if value is held), None)
    if type(variables) is dict and sys.getrefcount(variables) <= OWN_REFERENCES:
        variables.clear()
    return name


def _reads_locals(code: CodeType) -> bool:
    """Return whether the function calls one of READS_LOCALS; a method of that name, as `model.eval`, is another."""
    if READS_LOCALS.isdisjoint(code.co_names):
        return False
    return any(each.opname == "LOAD_GLOBAL" and each.argval in READS_LOCALS for each in dis.get_instructions(code))


def _growing_line(frame: FrameType, name: str) -> int | None:
    code = list(dis.get_instructions(frame.f_code))
    for place, each in enumerate(code):
        if (
            each.argval == name
            and each.opname.startswith("LOAD_")
            and _grows(name, code[place + 1 : place + MAX_AHEAD])
        ):
            return None if each.positions is None else each.positions.lineno
    return None


def _grows(name: str, after: Sequence[dis.Instruction]) -> bool:
    """Return whether these instructions, after the container is loaded, put something into it."""
    names = [each.opname for each in after]
    if names[:1] in (["LOAD_METHOD"], ["LOAD_ATTR"]) and after[0].argval in GROWING:
        return True
    if names[1:2] == ["STORE_SUBSCR"]:  # held[key] = ...
        return names[0].startswith("LOAD_")
    stored = names.index("BINARY_OP") + 1 if "BINARY_OP" in names else len(names)  # held += ...
    return stored < len(names) and names[stored].startswith("STORE_") and after[stored].argval == name
