"""Tiles that a run brings: its last agent left them (`live/leaving.py`), and a viewer takes them for its own.

They are the viewer's, made of the same records by the same functions. The files stay in the run; in the cache lie links
to them, so that nothing of a run is ever changed by looking at it.
"""

import hashlib
import os
import shutil
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from traincope.analysis import analyze
from traincope.analysis.tiling import write_tiles
from traincope.errors import RunDirectoryError
from traincope.report import to_document, to_json
from traincope.report.schema import SCHEMA_VERSION
from traincope.store.layout import AGENT_LOG, METRICS_FILES, ROWS_FILE, TILES_DIRECTORY
from traincope.store.lines import read_object
from traincope.store.tiles import DOCUMENT_FILE, HEADER_FILE, VERSION, TilesWriter, open_tiles
from traincope.timeline import match_instances, open_run

COLUMN = ".bin"
READABLE = 0o777
"""By whoever may read the run: the umask decides."""


def left_tiles(run: Path) -> Path:
    """Where the tiles of the present records of a run that is over lie in it, if they do.

    Names and sizes tell whether records are the same: nobody writes any more, and a copy has other times. What an
    agent has to say of itself is no part of them. Another version of traincope may say other things of the run.
    Raises RunDirectoryError where it cannot be read.
    """
    try:
        files = [(path.relative_to(run), path.stat().st_size) for path in run.rglob("*") if path.is_file()]
    except OSError as error:
        raise RunDirectoryError(f"{run} cannot be read any more: {error.strerror}") from error
    told = sorted((str(path), size) for path, size in files if not _is_of_agent(path))
    key = repr((VERSION, SCHEMA_VERSION, version("traincope"), told))
    return run / TILES_DIRECTORY / hashlib.sha256(key.encode()).hexdigest()[:16]


def leave(run: Path, tiles: Path) -> None:
    """Make them, in place of older ones. Raises OSError, RunDirectoryError."""
    timeline = open_run(run)
    older = list(tiles.parent.glob("*"))
    writer = TilesWriter(tiles, mode=READABLE)
    try:
        writer.write_text(DOCUMENT_FILE, to_json(to_document(analyze(timeline))))
        write_tiles(timeline, match_instances(timeline), writer)
    finally:
        writer.abandon()
    for path in older:
        shutil.rmtree(path, ignore_errors=True)


def adopt(run: Path, tiles: Path) -> None:
    """`tiles`, where they are not there yet and the run brings some that are whole. Raises RunDirectoryError."""
    if tiles.is_dir() or not (run / TILES_DIRECTORY).is_dir():
        return
    left = left_tiles(run)
    if not _are_whole(left):
        return
    older, aside = list(tiles.parent.glob("*")), tiles.with_name(f"{tiles.name}.{os.getpid()}.new")
    with suppress(OSError):  # Then they are made anew, and that says why they cannot be kept.
        aside.mkdir(parents=True, mode=0o700)
        for file in left.iterdir():
            if file.suffix == COLUMN or file.name in (HEADER_FILE, DOCUMENT_FILE):
                (aside / file.name).symlink_to(file.resolve())
        aside.rename(tiles)
    for path in (aside, *older):
        shutil.rmtree(path, ignore_errors=True)


def _is_of_agent(path: Path) -> bool:
    return path.name in (AGENT_LOG, ROWS_FILE) or path.match(METRICS_FILES) or path.parts[0] == TILES_DIRECTORY


def _are_whole(tiles: Path) -> bool:
    """Whether they are there, and can be read."""
    try:
        open_tiles(tiles)
        read_object(tiles / DOCUMENT_FILE)
    except RunDirectoryError:
        return False
    return True
