"""An export on disk: under its name only when it is whole, and never over something without a word."""

import os
import shutil
import sys
from pathlib import Path

from traincope.errors import UsageError
from traincope.timeline import Timeline
from traincope_exporters.exports import DirectoryExport, TextExport

STDOUT = Path("-")


def write_export(export: TextExport | DirectoryExport, timeline: Timeline, target: Path, *, overwrite: bool) -> None:
    """Make `target`; a text also goes to the standard output, as `-`.

    Raises UsageError where it cannot be written or is there already.
    """
    if isinstance(export, TextExport):
        if target == STDOUT:
            for piece in export.pieces(timeline):
                sys.stdout.write(piece)
            return
        _write_text(export, timeline, target, overwrite=overwrite)
    else:
        _write_directory(export, timeline, target, overwrite=overwrite)


def refuse(export: TextExport | DirectoryExport, target: Path, *, overwrite: bool) -> None:
    """Raises UsageError where `target` cannot be made, before anything is computed for it."""
    if target == STDOUT:
        if isinstance(export, DirectoryExport):
            raise UsageError("a directory of files cannot go to the standard output; name it with -o")
    elif target.is_dir() and isinstance(export, TextExport):
        raise UsageError(f"{target} is a directory; give a file with -o")
    elif target.exists() and not overwrite:
        raise UsageError(f"{target} is there already; give another place with -o, or --overwrite")


def _write_text(export: TextExport, timeline: Timeline, target: Path, *, overwrite: bool) -> None:
    refuse(export, target, overwrite=overwrite)
    unborn = _unborn(target)
    try:
        with unborn.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(export.pieces(timeline))
        os.replace(unborn, target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        unborn.unlink(missing_ok=True)


def _write_directory(export: DirectoryExport, timeline: Timeline, target: Path, *, overwrite: bool) -> None:
    refuse(export, target, overwrite=overwrite)
    unborn = _unborn(target)
    try:
        shutil.rmtree(unborn, ignore_errors=True)
        unborn.mkdir()
        export.write(timeline, unborn)
        if target.is_dir():
            shutil.rmtree(target)
        unborn.rename(target)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unborn, ignore_errors=True)


def _unborn(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}")
