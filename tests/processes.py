"""Test files that start processes: each, or a file of tests that it imports, imports a module that starts them.

`pytest --fast` leaves these files out (`make test FAST=1`).
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
STARTERS = ("subprocess", "multiprocessing", "playwright", "mcp", "traincope.engine.launch")
STARTS = re.compile(rf"^\s*(?:import|from) (?:{'|'.join(map(re.escape, STARTERS))})\b", re.M)
IMPORTED = re.compile(r"^\s*(?:from (tests[\w.]*) import (\([^)]*\)|.*)|import (tests[\w.]+))", re.M)


def starts_processes(path: Path) -> bool:
    """Whether a file of tests starts processes."""
    return any(STARTS.search(text) for text in _texts(path, set()))


def _texts(path: Path, seen: set[Path]) -> Iterator[str]:
    """The texts of a file and of all files of tests that it imports."""
    if path not in seen:
        seen.add(path)
        yield path.read_text()
        for imported in _imported(path):
            yield from _texts(imported, seen)


@cache
def _imported(path: Path) -> tuple[Path, ...]:
    found = []
    for package, names, module in IMPORTED.findall(path.read_text()):
        place = ROOT / (package or module).replace(".", "/")
        found += [place.with_suffix(".py"), *(place / f"{name}.py" for name in re.findall(r"\w+", names))]
    return tuple(file for file in found if file.exists())
