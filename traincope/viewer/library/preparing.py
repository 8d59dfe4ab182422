"""Work of the viewer's child process: read a run once, analyse it, cut it into tiles."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from time import time_ns
from typing import NamedTuple

import numpy as np

from traincope.analysis import Analysis, analyze
from traincope.analysis.context import Context
from traincope.errors import RunDirectoryError, UnreadableError
from traincope.events import Kind
from traincope.executors import alongside
from traincope.report.document.document import to_document, to_json
from traincope.report.document.job_summary import SummaryDocument, summary_document
from traincope.report.schema import Document
from traincope.summaries import job_summary, read_summaries
from traincope.tiles.build import write_tiles
from traincope.tiles.storage import VERSION
from traincope.timeline import Instances, Timeline, match_instances, open_run
from traincope.units import count
from traincope.viewer.library.analysis_cache import save_analysis

QUIET_NS = 3600 * 10**9
"""A run without an end counts as finished when no file of it changed for this long."""
KEPT_KINDS = (Kind.STEP, Kind.MEMORY, Kind.SCALAR, Kind.EVENT, Kind.FLOPS, Kind.GPU)
"""Kinds of records that pages read in addition to the tiles: a few per step."""


class File(NamedTuple):
    """A file of a directory."""

    name: str
    """Path relative to the directory."""
    size: int
    changed_ns: int


def files(directory: Path) -> Iterator[File]:
    """The files of a directory, unordered, without vanished ones. Raises OSError if one cannot be read."""
    return _within(str(directory), skip=len(str(directory)) + 1)


def _within(directory: str, *, skip: int) -> Iterator[File]:
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _within(entry.path, skip=skip)
            elif entry.is_file():
                with suppress(FileNotFoundError):
                    stat = entry.stat()
                    yield File(name=entry.path[skip:], size=stat.st_size, changed_ns=stat.st_mtime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The cache directory for the tiles of a run's present records."""

    run: Path
    cache: Path

    @property
    def tiles(self) -> Path:
        return self.cache / _short(str(self.run.resolve())) / fingerprint(self.run)


def cache_directory() -> Path:
    """The user's cache directory (XDG base directory specification)."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "traincope" / "tiles"


def fingerprint(run: Path) -> str:
    """A hash of the run's files and of traincope itself. Raises RunDirectoryError where the run is gone."""
    return _short(repr((VERSION, _program(), sorted(_files_of(run)))))


@cache
def _program() -> str:
    """A hash of traincope's own files; another version makes new tiles."""
    return _short(repr(sorted(file for file in files(Path(__file__).parents[2]) if file.name.endswith(".py"))))


Report = Callable[[str], None]
"""Called with what a process does now, in words that follow a colon. Few times, because a pipe holds few of them."""
SHARES = 20
"""Most times that a stage reports how far it is."""


def prepare(run: Path, tiles: Path, report: Report = lambda _: None) -> Analysis:
    """The analysis without the records that the tiles hold; writes `tiles` where they are missing.

    The analysis of a finished run is cached next to its tiles. A process of its own cuts the tiles during the analysis.
    """
    report("reading the events")
    timeline = open_run(run)
    report("matching the collectives")
    instances = match_instances(timeline)
    cutting = nullcontext(_ignored) if tiles.is_dir() else alongside(partial(_cut, tiles, timeline, instances, report))
    try:
        with cutting as complete:
            analysis = analyze(timeline, instances=instances, progress=_analysed(report))
            report("writing the report")
            document = to_document(analysis)
            complete(to_json(document))
            reduced = replace(analysis, context=Context(light(timeline)))
        if not growing(document) or _quiet(run):
            save_analysis(reduced, tiles)
    except OSError as error:
        if error.filename is not None and Path(os.fsdecode(error.filename)).is_relative_to(run.absolute()):
            raise UnreadableError.of(run, error) from error
        raise RunDirectoryError(
            f"cannot write {tiles}: {error.strerror or error}; set XDG_CACHE_HOME to a writable directory"
        ) from error
    return reduced


def _cut(tiles: Path, timeline: Timeline, instances: Instances, report: Report, document: Callable[[], str]) -> None:
    progress = _in_words("preparing the timeline", report)
    write_tiles(tiles, timeline, instances, document=document, progress=progress)


def _ignored(_: str) -> None:
    """The document of a run whose tiles are there."""


def summarise(run: Path, _tiles: Path, report: Report = lambda _: None) -> SummaryDocument:
    """What rows and last records show of a run of very many ranks. It writes no tiles."""
    return summary_document(job_summary(read_summaries(run, progress=_in_words("reading the rows", report))))


def _in_words(stage: str, report: Report) -> Callable[[int, int], None]:
    """Report a number of ranks at its begin and at most `SHARES` times more."""
    reported = -1

    def progress(done: int, total: int) -> None:
        nonlocal reported
        if total and done * SHARES // total > reported:
            reported = done * SHARES // total
            report(f"{stage}, {done:,} of {count(total, 'rank')}")

    return progress


def _analysed(report: Report) -> Callable[[int, int], None]:
    in_words = _in_words("analysing", report)

    def progress(done: int, total: int) -> None:
        in_words(done, total)
        if done == total:
            report("comparing the ranks")

    return progress


def growing(document: Document) -> bool:
    """True while a rank may still be recording, because it has no recorded end."""
    return any(fault["kind"] == "no_end" for fault in document["faults"])


def _quiet(run: Path) -> bool:
    """True when no file changed for QUIET_NS; writes to a mapped file update its time with a delay."""
    return time_ns() - max(file.changed_ns for file in _files_of(run)) > QUIET_NS


def light(timeline: Timeline) -> Timeline:
    """The same run with only the records of `KEPT_KINDS` kinds."""
    ranks = tuple(
        replace(
            rank,
            threads={
                name: records[np.isin(records["kind"], KEPT_KINDS)].copy() for name, records in rank.threads.items()
            },
        )
        for rank in timeline.ranks
    )
    bare = tuple(replace(rank, segments=()) for rank in timeline.run.ranks)
    return replace(timeline, ranks=ranks, run=replace(timeline.run, ranks=bare), earlier=())


def _files_of(run: Path) -> list[File]:
    try:
        listed = list(files(run))
    except OSError as error:
        raise RunDirectoryError(f"cannot read {run}: {error.strerror}; give a directory that you may read") from error
    if not listed:
        raise RunDirectoryError(f"{run} is missing or empty; give the directory of a run")
    return listed


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
