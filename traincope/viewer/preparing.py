"""What a child process does for the viewer: read all of a run once, analyse it, cut it into tiles."""

import hashlib
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from traincope.analysis import Analysis, analyze
from traincope.analysis.tiling import write_tiles
from traincope.errors import RunDirectoryError
from traincope.events import Kind
from traincope.report import to_document, to_json
from traincope.store.tiles import DOCUMENT_FILE, VERSION, TilesWriter
from traincope.timeline import Timeline, match_instances, open_run

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
    """Changes when a file of the run does. Raises RunDirectoryError where the run has gone."""
    try:
        files = sorted((str(path.relative_to(run)), path.stat()) for path in run.rglob("*") if path.is_file())
    except OSError as error:
        raise RunDirectoryError(f"{run} cannot be read any more: {error.strerror}") from error
    if not files:
        raise RunDirectoryError(f"{run} is gone, or empty")
    told = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
    return _short(repr((VERSION, told)))


def prepare(run: Path, tiles: Path) -> Analysis:
    """The analysis, without the records that the tiles hold; `tiles` is made where it is not there yet."""
    timeline = open_run(run)
    analysis = analyze(timeline)
    if not tiles.is_dir():
        _write(timeline, analysis, tiles)
    return replace(analysis, timeline=light(timeline))


def light(timeline: Timeline) -> Timeline:
    """The same run with `KEPT` records alone."""
    ranks = tuple(
        replace(rank, threads={name: kept[np.isin(kept["kind"], KEPT)].copy() for name, kept in rank.threads.items()})
        for rank in timeline.ranks
    )
    bare = tuple(replace(rank, segments=()) for rank in timeline.run.ranks)
    return replace(timeline, ranks=ranks, run=replace(timeline.run, ranks=bare))


def _write(timeline: Timeline, analysis: Analysis, tiles: Path) -> None:
    """Older tiles of the run go: whoever has them open keeps them until it lets go."""
    older = [path for path in tiles.parent.glob("*") if path.is_dir()] if tiles.parent.is_dir() else []
    try:
        writer = TilesWriter(tiles)
        try:
            writer.write_text(DOCUMENT_FILE, to_json(to_document(analysis)))
            write_tiles(timeline, match_instances(timeline), writer)
        finally:
            writer.abandon()
    except OSError as error:
        raise RunDirectoryError(
            f"cannot write {tiles}: {error.strerror}; set XDG_CACHE_HOME to where you may"
        ) from error
    for path in older:
        shutil.rmtree(path, ignore_errors=True)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
