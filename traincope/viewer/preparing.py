"""What a child process does for the viewer: read all of a run once, analyse it, cut it into tiles."""

import hashlib
import os
import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import time_ns

import numpy as np

from traincope.analysis import Analysis, analyze
from traincope.analysis.tiling import write_tiles
from traincope.errors import RunDirectoryError
from traincope.events import Kind
from traincope.report import to_document, to_json
from traincope.report.schema import Document
from traincope.store.tiles import DOCUMENT_FILE, VERSION, TilesWriter
from traincope.timeline import Timeline, match_instances, open_run
from traincope.viewer.files import File, files
from traincope.viewer.keeping import keep

QUIET_NS = 3600 * 10**9
"""A run that told no end and was not written to for so long is taken to have ended."""
KEPT = (Kind.STEP, Kind.MEMORY, Kind.SCALAR, Kind.EVENT, Kind.FLOPS, Kind.GPU)
"""Records of a rank that pages look at beside the tiles: a few a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the tiles of a run's present records are kept."""

    run: Path
    cache: Path

    @property
    def tiles(self) -> Path:
        return self.cache / _short(str(self.run.resolve())) / fingerprint(self.run)


def cache_directory() -> Path:
    """Of the user (XDG base directory specification)."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "traincope" / "tiles"


def fingerprint(run: Path) -> str:
    """Changes when a file of the run does, or traincope itself. Raises RunDirectoryError where the run has gone."""
    return _short(repr((VERSION, _program(), sorted(_files_of(run)))))


@cache
def _program() -> str:
    """What an older traincope made of a run is not shown by a newer."""
    return _short(repr(sorted(file for file in files(Path(__file__).parents[1]) if file.name.endswith(".py"))))


def prepare(run: Path, tiles: Path) -> Analysis:
    """The analysis, without the records that the tiles hold; `tiles` is made where it is not there yet.

    It is kept beside them where nothing will be added to the run.
    """
    timeline = open_run(run)
    analysis = analyze(timeline)
    document, found = to_document(analysis), replace(analysis, timeline=light(timeline))
    try:
        if not tiles.is_dir():
            _write(timeline, document, tiles)
        if not growing(document) or _quiet(run):
            keep(found, tiles)
    except OSError as error:
        raise RunDirectoryError(
            f"cannot write {tiles}: {error.strerror}; set XDG_CACHE_HOME to where you may"
        ) from error
    return found


def growing(document: Document) -> bool:
    """Whether a rank may go on recording: nothing says that it has ended."""
    return any(fault["kind"] == "no_end" for fault in document["faults"])


def _quiet(run: Path) -> bool:
    """A mapped file that is written to does not always tell when: only after a while can it be told by its time."""
    return time_ns() - max(file.changed_ns for file in _files_of(run)) > QUIET_NS


def light(timeline: Timeline) -> Timeline:
    """The same run with `KEPT` records alone."""
    ranks = tuple(
        replace(rank, threads={name: kept[np.isin(kept["kind"], KEPT)].copy() for name, kept in rank.threads.items()})
        for rank in timeline.ranks
    )
    bare = tuple(replace(rank, segments=()) for rank in timeline.run.ranks)
    return replace(timeline, ranks=ranks, run=replace(timeline.run, ranks=bare))


def _write(timeline: Timeline, document: Document, tiles: Path) -> None:
    """Older tiles of the run go: whoever has them open keeps them until it lets go."""
    older = [path for path in tiles.parent.glob("*") if path.is_dir()] if tiles.parent.is_dir() else []
    writer = TilesWriter(tiles)
    try:
        writer.write_text(DOCUMENT_FILE, to_json(document))
        write_tiles(timeline, match_instances(timeline), writer)
    finally:
        writer.abandon()
    for path in older:
        shutil.rmtree(path, ignore_errors=True)


def _files_of(run: Path) -> list[File]:
    try:
        found = list(files(run))
    except OSError as error:
        raise RunDirectoryError(f"{run} cannot be read any more: {error.strerror}") from error
    if not found:
        raise RunDirectoryError(f"{run} is gone, or empty")
    return found


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
