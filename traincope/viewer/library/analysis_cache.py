"""A cache of the analysis on disk, next to the tiles of the same records, so a run is analysed once.

A pickle can name any callable. This reader accepts traincope's frozen records, arrays and plain values only; any
other name counts as damage, and the run is read again.
"""

import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from traincope.analysis import Analysis
from traincope.whole_files import write_whole

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
"""Module -> names that the pickle may refer to."""
PACKAGES = tuple(f"traincope.{package}" for package in ("analysis", "events", "plan", "store", "timeline", "topology"))
DAMAGED = (
    *(ArithmeticError, AttributeError, EOFError, ImportError, LookupError, MemoryError, OSError),
    *(RuntimeError, TypeError, ValueError, pickle.PickleError),
)
"""Exceptions that reading a damaged pickle raises."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in PLAIN.get(module, ()):
            return super().find_class(module, name)
        value = super().find_class(module, name) if module.startswith(PACKAGES) and "." not in name else None
        if isinstance(value, type) and (is_dataclass(value) or issubclass(value, Enum | tuple)):
            return value
        raise pickle.UnpicklingError(f"{module}.{name} does not belong to an analysis")


def save_analysis(analysis: Analysis, tiles: Path) -> None:
    """Write the analysis into the directory `tiles`, atomically. Raises OSError where it cannot be written."""
    with gc_paused():
        content = pickle.dumps(analysis, protocol=pickle.HIGHEST_PROTOCOL)
    write_whole(tiles / ANALYSIS_FILE, content)


def load_analysis(tiles: Path) -> Analysis | None:
    """The cached analysis; None where it is missing or damaged."""
    try:
        with (tiles / ANALYSIS_FILE).open("rb") as file, gc_paused():
            analysis = _Reader(file).load()
    except DAMAGED:
        return None
    return analysis if isinstance(analysis, Analysis) else None


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector: what is read or analysed holds hardly any, and looking for it takes long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
