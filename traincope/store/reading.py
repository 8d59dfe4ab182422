"""Run directory -> records: what can still be read is read, what cannot is named."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.errors import EmptyRunError, NotARunError, RunDirectoryError, VersionError
from traincope.events import Kind
from traincope.store.attempts import Attempt, read_attempt
from traincope.store.cards import RankInfo, RunInfo, read_rank_info, read_run_info
from traincope.store.gaps import count_dropped, missing_segments
from traincope.store.launcher import LauncherNote, notes_of, read_notes
from traincope.store.layout import (
    DETAILS_FILE,
    GROUPS_FILE,
    NAMES_FILE,
    PROVISIONAL,
    RANK_FILE,
    RUN_FILE,
    attempt_number,
    rank_number,
    records_of,
    traces_of,
)
from traincope.store.lines import dense_groups, dense_names, parse, read_numbered, unknown_name
from traincope.store.records import read_records
from traincope.store.segments import RECORD_DTYPE, SegmentRecords
from traincope.topology import Group

SAME_LAUNCH_NS = 60_000_000_000
"""Ranks of one launch start within."""

NAMED = (Kind.PHASE, Kind.ACTION, Kind.COLLECTIVE, Kind.STALL, Kind.SPAN, Kind.EVENT)
"""Kinds whose `name` is the number of a string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecords:
    """Everything one rank left in one attempt."""

    attempt: int
    info: RankInfo
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    segments: tuple[SegmentRecords, ...]
    details: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    """What events carry, by the number in their records' `group`."""
    problems: tuple[str, ...]
    """What of this rank could not be read, one sentence each."""
    traces: tuple[Path, ...] = ()
    """Its kernel traces, which are read when they are asked for."""

    @property
    def rank(self) -> int:
        return self.info.coord.rank

    def thread(self, name: str) -> NDArray[np.void]:
        """All records of one thread, in the order they were begun."""
        parts = [segment.records for segment in self.segments if segment.thread == name]
        return np.concatenate(parts) if parts else np.empty(0, dtype=RECORD_DTYPE)

    @property
    def threads(self) -> tuple[str, ...]:
        """Thread names, the training thread first."""
        seen = sorted({segment.thread for segment in self.segments}, key=lambda name: (name != "main", name))
        return tuple(seen)

    @property
    def dropped(self) -> int:
        """What the recorder could not keep: the records' own count lacks drops after the last of them, `rank.json` has
        none before a clean end.
        """
        return max(count_dropped(self.segments), int(self.info.recorder.get("dropped", 0)))

    def name(self, number: int) -> str:
        """The interned string, or a stand-in where the names file lost it."""
        return self.names[number] if number < len(self.names) else unknown_name(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """A run directory, read."""

    path: Path
    info: RunInfo
    ranks: tuple[RankRecords, ...]
    """The last attempt's ranks, in rank order."""
    attempts: int
    missing: tuple[int, ...]
    """Ranks of the world that left nothing readable."""
    problems: tuple[str, ...]
    earlier: tuple[Attempt, ...] = ()
    """The attempts before the last, as far as they can be read."""
    launcher: tuple[LauncherNote, ...] = ()
    """How processes of any attempt ended that did not end well, where the launcher noted it."""

    @property
    def last_attempt(self) -> int:
        """The number of the one that is read in full."""
        return self.ranks[0].attempt if self.ranks else 0


def read_run(path: str | Path) -> RunRecords:
    """Open a run directory, also while it is being written or after its writers were killed.

    `path` may be a parent that holds exactly one run. Raises NotARunError, EmptyRunError or
    VersionError, each with what to do; damage to single ranks is reported in `problems` instead.
    """
    root = find_run(Path(path))
    info = read_run_info(root)
    numbered = {n: p for p in root.glob("attempt-*") if p.is_dir() and (n := attempt_number(p)) is not None}
    number, attempts = max(numbered, default=0), [numbered[n] for n in sorted(numbered)]
    ranks, problems = _read_ranks(sorted(attempts[-1].glob("rank-*")) if attempts else [], attempt=number)
    ranks = _with_provisional(root, ranks, problems, attempt=number)
    if not attempts and not ranks:
        raise EmptyRunError(f"{root} was begun, but no rank has recorded anything yet; try again once training runs")
    if not any(rank.traces or any(len(segment.records) for segment in rank.segments) for rank in ranks):
        detail = f": {problems[0]}" if problems else ""
        raise EmptyRunError(f"{root} holds no records{detail}; try again once training has begun")
    present = {rank.rank for rank in ranks}
    notes = read_notes(notes_of(root))
    return RunRecords(
        path=root,
        info=info,
        ranks=tuple(ranks),
        attempts=len(attempts),
        missing=tuple(rank for rank in range(info.world_size) if rank not in present and not info.imported),
        problems=tuple(problems),
        earlier=tuple(earlier_attempts(attempts[:-1], notes=notes)),
        launcher=notes,
    )


def earlier_attempts(directories: list[Path], *, notes: tuple[LauncherNote, ...]) -> Iterator[Attempt]:
    """A light reading of attempts, in order, and what the launcher noted of them; what cannot be read is left out."""
    noted = {note.attempt for note in notes if note.rank is not None}
    for directory in directories:
        attempt = read_attempt(directory)
        if attempt is not None:
            yield replace(attempt, noted=attempt.number in noted)


def _read_ranks(directories: list[Path], *, attempt: int) -> tuple[list[RankRecords], list[str]]:
    """The ranks that can be read, and a sentence for each that cannot."""
    ranks, problems = [], []
    for directory in directories:
        try:
            ranks.append(_read_rank(directory, attempt=attempt))
        except VersionError:
            raise
        except RunDirectoryError as error:
            problems.append(str(error))
    return ranks, problems


def _with_provisional(root: Path, ranks: list[RankRecords], problems: list[str], *, attempt: int) -> list[RankRecords]:
    """And those that died before they knew their place: newest first, of this launch, where nothing better is."""
    found, unreadable = _read_ranks(sorted(root.glob(f"{PROVISIONAL}*")), attempt=attempt)
    problems += unreadable
    began_ns = min((rank.info.started_wall_ns for rank in ranks), default=0) - SAME_LAUNCH_NS
    present = {rank.rank: rank for rank in ranks}
    for rank in sorted(found, key=lambda rank: -rank.info.started_wall_ns):
        if rank.rank not in present and rank.info.started_wall_ns >= began_ns:
            present[rank.rank] = rank
            problems.append(f"rank {rank.rank} recorded, but never met the others: it was in no process group")
    return [present[number] for number in sorted(present)]


def find_run(path: Path) -> Path:
    """The run directory that `path` is, or the one run it contains.

    Raises NotARunError if there is none, or several.
    """
    if not path.exists():
        raise NotARunError(f"{path} does not exist; give the directory that `traincope.run(out=...)` was given")
    if (path / RUN_FILE).is_file():
        return path
    found = sorted(p.parent for p in path.glob(f"*/{RUN_FILE}")) if path.is_dir() else []
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(p.name for p in found[:5]) + (", ..." if len(found) > 5 else "")
        raise NotARunError(f"{path} holds {len(found)} runs ({names}); name one of them")
    raise NotARunError(f"{path} is not a run directory: it has no {RUN_FILE}; give the directory a run was recorded in")


def _read_rank(directory: Path, *, attempt: int) -> RankRecords:
    problems: list[str] = []
    info = read_rank_info(directory)
    if info.coord.rank != rank_number(directory) and not directory.name.startswith(PROVISIONAL):
        raise RunDirectoryError(
            f"{directory / RANK_FILE} says it is rank {info.coord.rank}; it was put there by mistake"
        )
    segments, files = [], records_of(directory)
    for path in files:
        try:
            segment = read_records(path)
        except VersionError:
            raise
        except RunDirectoryError as error:
            problems.append(str(error))
            continue
        if segment.lost_bytes:
            problems.append(f"{path} is cut off in the middle of a record; {segment.lost_bytes} bytes of it are lost")
        if segment.garbled:
            problems.append(f"{path} is damaged: {segment.garbled:,} records of it make no sense and are left out")
        segments.append(segment)
    lines = read_numbered(directory / NAMES_FILE, version=info.version)
    names = dense_names(lines)
    known = np.array([number in lines for number in range(len(names))], dtype=bool)
    unnamed = sum(_count_unnamed(segment.records, known=known) for segment in segments)
    if unnamed:
        problems.append(f"{directory / NAMES_FILE} lacks the names of {unnamed:,} records; was the disk full?")
    gone, first = missing_segments(files, dropped=count_dropped(segments))
    if gone:
        problems.append(f"{directory / first} is gone{f' and {gone - 1} more' * (gone > 1)}: somebody removed it")
    return RankRecords(
        attempt=attempt,
        info=info,
        names=names,
        groups=dense_groups(read_numbered(directory / GROUPS_FILE, version=info.version)),
        details=_details(directory, names=names, segments=segments, version=info.version),
        segments=tuple(segments),
        problems=tuple(problems),
        traces=tuple(traces_of(directory)),
    )


def _count_unnamed(records: NDArray[np.void], *, known: NDArray[np.bool_]) -> int:
    """Records that carry the number of a string which the names file does not hold."""
    numbers = records["name"][np.isin(records["kind"], NAMED)]
    within = numbers < len(known)
    return len(numbers) - int(np.count_nonzero(known[numbers[within]]))


def _details(
    directory: Path, *, names: tuple[str, ...], segments: list[SegmentRecords], version: int
) -> dict[int, dict[str, Any]]:
    if version > 1:
        values = read_numbered(directory / DETAILS_FILE, version=version)
    else:
        events = [segment.records[segment.records["kind"] == Kind.EVENT] for segment in segments]
        numbers = {int(number) for records in events for number in records["group"]}
        values = {number: parse(names[number]) for number in numbers if 0 < number < len(names)}
    return {number: value for number, value in values.items() if isinstance(value, dict)}
