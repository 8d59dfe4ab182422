"""Write an export to disk: a file appears only when it is complete, and replaces nothing without --overwrite."""

import os
import shutil
from pathlib import Path

from traincope.errors import UsageError
from traincope.report.exports import DirectoryExport, TextExport
from traincope.timeline import open_run
from traincope.whole_files import is_stream, output, written_aside

MARK = ".traincope-export"
"""File in a directory that an export made. A directory without it is not replaced: it may hold other work."""


def write_export(export: TextExport | DirectoryExport, run: Path, target: Path, *, overwrite: bool) -> None:
    """Create `target` from the run directory `run`, or write into it if it is a pipe or a device.

    Raises like `open_run`, and UsageError if it cannot be written or already exists.
    """
    check_target(export, target, overwrite=overwrite)
    try:
        if isinstance(export, TextExport):
            timeline = open_run(run)
            with output(target) as file:
                file.writelines(piece.encode() for piece in export.pieces(timeline))
        else:
            _write_directory(export, run, Path(os.path.realpath(target)))
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error


def check_target(export: TextExport | DirectoryExport, target: Path, *, overwrite: bool) -> None:
    """Raise UsageError if `target` cannot be created, before the export is computed."""
    if is_stream(target):
        if isinstance(export, DirectoryExport):
            raise UsageError(f"{target} is a pipe or a device, and this export writes a directory; give one with -o")
        return
    if target.is_dir() and isinstance(export, TextExport):
        raise UsageError(f"{target} is a directory; give a file with -o")
    if target.exists() and not overwrite:
        raise UsageError(f"{target} already exists; give another path with -o, or --overwrite")
    if target.exists() and isinstance(export, DirectoryExport) and not (target / MARK).is_file():
        raise UsageError(f"{target} was not made by an export, so it is not replaced; give another path with -o")


def _write_directory(export: DirectoryExport, run: Path, target: Path) -> None:
    with written_aside(target) as directory:
        directory.mkdir()
        if export.write_ranks is None:
            export.write(open_run(run), directory)
        else:
            export.write_ranks(run, directory)
        (directory / MARK).touch()
        if target.is_dir():
            shutil.rmtree(target)
