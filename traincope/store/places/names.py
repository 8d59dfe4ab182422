"""Names of new runs: short, readable, and each given once in a directory."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from traincope.private_files import make_directory
from traincope.store.layout import RUN_FILE

UNNAMED = "run"
"""Instead of the name of a script, for a program that has none."""
MAX_STEM = 32
MAX_READ = 64
"""Largest number of runs that are looked through for the run of a launch."""


def new_run(root: Path, script: str) -> Path:
    """Return a directory that does not exist below `root`, such as `nanogpt-1128-1324`: script, month, day, time."""
    return next(run for run in _candidates(root, script) if not run.exists())


def reserve_run(root: Path, script: str, *, for_store: bool = False) -> Path:
    """Create such a directory, so that no other run gets its name. Raises OSError.

    `for_store`: the run is also copied to a place that it shares with runs of other directories, so its name gets a
    random part.
    """
    for run in _candidates(root, script, part=f"-{os.urandom(2).hex()}" if for_store else ""):
        with suppress(FileExistsError):
            make_directory(run)
            return run
    raise AssertionError("there are always more candidates")


def newest_first(*roots: Path) -> list[Path]:
    """Return the newest runs directly below these directories, by the last change of their manifests."""
    changed = []
    for manifest in {manifest for root in roots for manifest in root.glob(f"*/{RUN_FILE}")}:
        with suppress(OSError):
            changed.append((manifest.stat().st_mtime_ns, manifest.parent))
    return [run for _, run in sorted(changed, reverse=True)[:MAX_READ]]


def _candidates(root: Path, script: str, *, part: str = "") -> Iterator[Path]:
    name = f"{_stem(script)}-{time.strftime('%m%d-%H%M')}{part}"
    yield root / name
    yield from (root / f"{name}-{number}" for number in count(2))


def _stem(script: str) -> str:
    """The program's name: of its file, or of its package. Only characters that need no quotes in a shell stay."""
    path = Path(script)
    name = path.parent.name if path.stem == "__main__" else path.stem
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.")[:MAX_STEM] or UNNAMED
