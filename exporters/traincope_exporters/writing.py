"""An export on disk: under its name only when it is whole, and never over something without a word."""

import os
import shutil
from pathlib import Path

from traincope.errors import UsageError
from traincope.timeline import Timeline
from traincope_exporters.exports import DirectoryExport, TextExport

MARK = ".traincope-export"
"""In a directory that an export made: such a one may be replaced, another would be somebody's work."""


def write_export(export: TextExport | DirectoryExport, timeline: Timeline, target: Path, *, overwrite: bool) -> None:
    """Make `target`. Raises UsageError where it cannot be written or is there already."""
    refuse(export, target, overwrite=overwrite)
    if isinstance(export, TextExport):
        _write_text(export, timeline, target)
    else:
        _write_directory(export, timeline, target)


def refuse(export: TextExport | DirectoryExport, target: Path, *, overwrite: bool) -> None:
    """Raises UsageError where `target` cannot be made, before anything is computed for it."""
    if target.is_dir() and isinstance(export, TextExport):
        raise UsageError(f"{target} is a directory; give a file with -o")
    if target.exists() and not overwrite:
        raise UsageError(f"{target} is there already; give another place with -o, or --overwrite")
    if target.exists() and isinstance(export, DirectoryExport) and not (target / MARK).is_file():
        raise UsageError(f"{target} was made by no export, so it is not replaced; give another place with -o")


def _write_text(export: TextExport, timeline: Timeline, target: Path) -> None:
    unborn = _unborn(target)
    try:
        with unborn.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(export.pieces(timeline))
        os.replace(unborn, target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        unborn.unlink(missing_ok=True)


def _write_directory(export: DirectoryExport, timeline: Timeline, target: Path) -> None:
    unborn = _unborn(target)
    try:
        shutil.rmtree(unborn, ignore_errors=True)
        unborn.mkdir()
        export.write(timeline, unborn)
        (unborn / MARK).touch()
        if target.is_dir():
            shutil.rmtree(target)
        unborn.rename(target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unborn, ignore_errors=True)


def _unborn(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}")
