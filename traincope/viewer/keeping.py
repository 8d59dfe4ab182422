"""An analysis on disk, beside the tiles of the same records, so that a run is read once and not at every look.

A pickle can name anything to be called. What is taken from this one are traincope's own frozen records, arrays and
plain values; one that names anything else counts as damaged, and the run is read again.
"""

import gc
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from traincope.analysis import Analysis

ANALYSIS_FILE = "analysis.pickle"
PLAIN = {
    "builtins": ("complex", "frozenset", "range", "set", "slice"),
    "collections": ("Counter", "OrderedDict", "defaultdict"),
    "numpy": ("dtype", "ndarray"),
    "numpy._core.multiarray": ("_reconstruct", "scalar"),
    "numpy._core.numeric": ("_frombuffer",),
    "numpy.core.multiarray": ("_reconstruct", "scalar"),
    "numpy.core.numeric": ("_frombuffer",),
    "pathlib": ("PosixPath", "PurePosixPath"),
    "pathlib._local": ("PosixPath", "PurePosixPath"),
}
"""Module -> what of it a value may be made with."""
OWN = tuple(f"traincope.{package}" for package in ("analysis", "events", "plan", "store", "timeline", "topology"))
DAMAGED = (
    *(ArithmeticError, AttributeError, EOFError, ImportError, LookupError, MemoryError, OSError),
    *(RuntimeError, TypeError, ValueError, pickle.PickleError),
)
"""What reading bytes at random raises."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in PLAIN.get(module, ()):
            return super().find_class(module, name)
        found = super().find_class(module, name) if module.startswith(OWN) and "." not in name else None
        if isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum | tuple)):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of an analysis")


def keep(analysis: Analysis, tiles: Path) -> None:
    """In the directory `tiles`, all of it or nothing. Raises OSError where nothing can be written."""
    aside = tiles / f"{ANALYSIS_FILE}.{os.getpid()}.new"
    try:
        aside.write_bytes(pickle.dumps(analysis, protocol=pickle.HIGHEST_PROTOCOL))
        aside.replace(tiles / ANALYSIS_FILE)
    finally:
        with suppress(OSError):
            aside.unlink()


def kept(tiles: Path) -> Analysis | None:
    """None where none was kept, or where it is damaged."""
    try:
        with (tiles / ANALYSIS_FILE).open("rb") as file, _uncollected():
            found = _Reader(file).load()
    except DAMAGED:
        return None
    return found if isinstance(found, Analysis) else None


@contextmanager
def _uncollected() -> Iterator[None]:
    """Nothing that is read is garbage; looking for some takes as long again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
