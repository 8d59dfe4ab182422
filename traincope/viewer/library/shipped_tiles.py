"""Tiles that a run ships: its last agent wrote them, and the viewer uses them instead of its own.

The same functions make both from the same records. The files stay in the run and the cache links to them, so viewing
a run never changes it.
"""

import hashlib
import shutil
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from traincope.analysis import analyze
from traincope.errors import RunDirectoryError
from traincope.private_files import make_directory
from traincope.report.document.document import to_document, to_json
from traincope.report.schema import SCHEMA_VERSION
from traincope.store.layout import AGENT_LOG, METRICS_FILES, OLD_ROWS_FILE, ROWS_FILE, SCALARS_FILES, TILES_DIRECTORY
from traincope.store.lines import read_object
from traincope.store.places.ship_notes import LEFT_FILES, SHIPPED_FILES
from traincope.tiles.build import write_tiles
from traincope.tiles.storage import DOCUMENT_FILE, HEADER_FILE, VERSION, complete_tiles, open_tiles
from traincope.timeline import open_run
from traincope.whole_files import written_aside

COLUMN = ".bin"
NOTES = (METRICS_FILES, SCALARS_FILES, LEFT_FILES, SHIPPED_FILES)


def shipped_path(run: Path) -> Path:
    """The path of the tiles inside a finished run for its present records; the tiles may be missing.

    Names and sizes of the files identify the records: a finished run no longer changes, and a copy has other times.
    The agent's own logs and notes of shipping do not count. Each version of traincope has its own tiles, because its
    analysis may differ.
    Raises RunDirectoryError where the run cannot be read.
    """
    try:
        files = [(path.relative_to(run), path.stat().st_size) for path in run.rglob("*") if path.is_file()]
    except OSError as error:
        raise RunDirectoryError(f"cannot read {run}: {error.strerror}") from error
    records = sorted((str(path), size) for path, size in files if not _is_of_agent(path))
    key = repr((VERSION, SCHEMA_VERSION, version("traincope"), records))
    return run / TILES_DIRECTORY / hashlib.sha256(key.encode()).hexdigest()[:16]


def write_shipped(run: Path, tiles: Path) -> None:
    """Write the tiles of a finished run and delete older ones. Raises OSError, RunDirectoryError."""
    analysis = analyze(open_run(run))
    document = to_json(to_document(analysis))
    write_tiles(tiles, analysis.timeline, analysis.context.instances, document=lambda: document)


def link_shipped(run: Path, tiles: Path) -> None:
    """Link `tiles` to the run's own where `tiles` is missing and those are complete. Raises RunDirectoryError."""
    if tiles.is_dir() or not (run / TILES_DIRECTORY).is_dir():
        return
    shipped = shipped_path(run)
    if not _are_whole(shipped):
        return
    older = complete_tiles(tiles.parent)
    # If this fails, the viewer makes its own tiles and reports why they cannot be kept.
    with suppress(OSError), written_aside(tiles) as new_path:
        make_directory(new_path)
        for file in shipped.iterdir():
            if file.suffix == COLUMN or file.name in (HEADER_FILE, DOCUMENT_FILE):
                (new_path / file.name).symlink_to(file.resolve())
    for path in older:
        shutil.rmtree(path, ignore_errors=True)


def _is_of_agent(path: Path) -> bool:
    is_note = path.name.startswith(".") or any(map(path.match, NOTES))
    return is_note or path.name in (AGENT_LOG, OLD_ROWS_FILE, ROWS_FILE) or path.parts[0] == TILES_DIRECTORY


def _are_whole(tiles: Path) -> bool:
    """True where the tiles exist and can be read."""
    try:
        open_tiles(tiles)
        read_object(tiles / DOCUMENT_FILE)
    except RunDirectoryError:
        return False
    return True
