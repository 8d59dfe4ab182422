"""Write an export to disk: a file appears only when it is complete, and replaces nothing without --overwrite."""

import os
import shutil
from pathlib import Path

from traincope.errors import UnreadableError, UsageError, refusals
from traincope.report.exports import DirectoryExport, TextExport
from traincope.store.reading import require_readable
from traincope.timeline import Timeline, open_run
from traincope.whole_files import aside_path, is_stream, output, written_aside

MARK = ".traincope-export"
"""File in a directory that an export made. A directory without it is not replaced: it may hold other work."""


def write_export(export: TextExport | DirectoryExport, run: Path, target: Path, *, overwrite: bool) -> None:
    """Create `target` from the run directory `run`, or write into it if it is a pipe or a device.

    Raises like `open_run`, UnreadableError if a file of the run cannot be read, and UsageError if the target cannot
    be written or already exists.
    """
    check_target(export, target, overwrite=overwrite)
    try:
        if isinstance(export, TextExport):
            timeline = open_whole(run)
            with output(target) as file:
                file.writelines(piece.encode() for piece in export.pieces(timeline))
        else:
            _write_directory(export, run, Path(os.path.realpath(target)))
    except OSError as error:
        if error.filename is not None and not _is_of(target, Path(os.fsdecode(error.filename))):
            raise UnreadableError.of(run, error) from error
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error


def open_whole(run: Path) -> Timeline:
    """Open a run of which every file of records can be read. Raises like `open_run`, and UnreadableError."""
    with refusals(run):
        timeline = open_run(run)
    require_readable(timeline.run)
    return timeline


def _is_of(target: Path, path: Path) -> bool:
    """Return whether an export to `target` writes to `path`. Some exports read the run while they write."""
    place = Path(os.path.realpath(target))
    return path == target or any(path.is_relative_to(each) for each in (place, aside_path(place)))


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
            export.write(open_whole(run), directory)
        else:
            export.write_ranks(run, directory)
        (directory / MARK).touch()
        if target.is_dir():
            shutil.rmtree(target)
