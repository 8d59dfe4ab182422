"""Reading a run directory: everything readable becomes records, and everything unreadable becomes a named problem."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincope.errors import (
    DataError,
    EmptyRunError,
    NotARunError,
    RunDirectoryError,
    UnreadableError,
    VersionError,
    refusals,
)
from traincope.events import EXCEPTION, Kind
from traincope.private_files import UMASK_VARIABLE
from traincope.store.job.attempts import Attempt, read_attempts
from traincope.store.job.batches import RankBatches, rank_batches, read_batches
from traincope.store.job.flight import FlightFile
from traincope.store.job.hang_notices import HangNotice, read_notices, standing_notice
from traincope.store.job.launcher import LauncherNote, notes_path, read_notes
from traincope.store.job.looks import Look, all_looks
from traincope.store.job.manifests import RankInfo, RunInfo, read_rank_info, read_run_info
from traincope.store.job.requests import WindowRequest, read_requests
from traincope.store.job.state_checks import StateCheckFile
from traincope.store.job.witness import Heard, compared_by_hosts, witnessed_hosts
from traincope.store.layout import (
    DETAILS_FILE,
    FLIGHT_FILE,
    GROUPS_FILE,
    LOGBOOK_FILE,
    NAMES_FILE,
    OPERATIONS_FILE,
    PROVISIONAL,
    RANK_FILE,
    RUN_FILE,
    attempt_directory,
    attempt_number,
    memory_files,
    rank_number,
    record_files,
    trace_files,
)
from traincope.store.lines import dense_names, parse, read_groups, read_numbered, unknown_name
from traincope.store.logbook import Logbook, read_logbook
from traincope.store.places.fetched import local_copy
from traincope.store.places.named_runs import run_by_name
from traincope.store.places.ship_notes import shipping_problems
from traincope.store.segments.joining import continued, gap_ns, in_one
from traincope.store.segments.records import count_dropped, missing_segments, read_records
from traincope.store.segments.segments import RECORD_DTYPE, SegmentRecords, last_instant_ns, recorder_events
from traincope.store.segments.stack_samples import StackSamples, read_stack_samples
from traincope.store.side_tables.operations import Operations, read_operations
from traincope.topology import Group

SAME_LAUNCH_NS = 60_000_000_000
"""Maximum difference between the starts of the ranks of one launch."""

RANKS_PER_TASK = 8
"""Ranks that a worker of an executor reads at once."""
SHARE = f"record with {UMASK_VARIABLE}=027 to let the group of its files read it"
NAMED_KINDS = (Kind.PHASE, Kind.ACTION, Kind.COLLECTIVE, Kind.STALL, Kind.SPAN, Kind.EVENT, Kind.BATCH)
"""Kinds of records whose `name` is the number of a string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecords:
    """All records of one rank in one attempt."""

    attempt: int
    info: RankInfo
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    segments: tuple[SegmentRecords, ...]
    details: Mapping[int, dict[str, Any]] = field(default_factory=dict)
    """Details of events, by the number in their records' `group`."""
    problems: tuple[str, ...]
    """Damage in the files of this rank, one sentence each."""
    unreadable: tuple[str, ...] = ()
    """Those of them that the system is the reason of: another user, or a sound disk, could read the files."""
    traces: tuple[Path, ...] = ()
    """Kernel traces of the rank; they are read on demand."""
    memory_snapshots: tuple[Path, ...] = ()
    """Imported snapshots of torch's allocator; they are read on demand."""
    running: bool | None = None
    """True if its process ran when the records were read; None if that is unknown, or if its end is recorded."""
    looks: tuple[Look, ...] = ()
    """Looks of others at its process, by time."""
    flight: FlightFile | None = None
    """torch's flight recorder as of the latest request."""
    directory: Path | None = None
    """The rank's directory; None for records that are in no file."""
    copies: Path | None = None
    """Directory of a witness' copies with which the records continue, or None."""
    state_checks: StateCheckFile | None = None
    """Checks of its parameters and optimizer state."""

    @property
    def rank(self) -> int:
        return self.info.coord.rank

    def thread(self, name: str) -> NDArray[np.void]:
        """All records of one thread, in order of their begin."""
        parts = [segment.records for segment in self.segments if segment.thread == name]
        return np.concatenate(parts) if parts else np.empty(0, dtype=RECORD_DTYPE)

    @property
    def threads(self) -> tuple[str, ...]:
        """Thread names, the training thread first."""
        names = sorted({segment.thread for segment in self.segments}, key=lambda name: (name != "main", name))
        return tuple(names)

    @property
    def dropped(self) -> int:
        """Dropped events. The records' own count lacks drops after the last record, and `rank.json` has no count before
        a clean end, so the larger one counts.
        """
        return max(count_dropped(self.segments), int(self.info.recorder.get("dropped", 0)))

    def stack_samples(self) -> Iterator[StackSamples]:
        """Samples of the training thread's stack, window by window. They are read on demand."""
        if self.directory is not None:
            yield from read_stack_samples(self.directory)

    def name(self, number: int) -> str:
        """The interned string, or a placeholder if the names file lost it."""
        return self.names[number] if number < len(self.names) else unknown_name(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessedHost:
    """A host as the agent of another host witnessed it."""

    heard: Heard
    ranks: tuple[RankRecords, ...]
    """Copies of the last records of its ranks, without their beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """The contents of a run directory."""

    path: Path
    info: RunInfo
    ranks: tuple[RankRecords, ...]
    """The last attempt's ranks, in rank order."""
    attempts: int
    """All of them, also later ones than the one that is read."""
    missing: tuple[int, ...]
    """Ranks of the world without readable records."""
    problems: tuple[str, ...]
    refused: tuple[int, ...] = ()
    """Ranks in `missing` whose directory is here, and whose files the system does not let this process read."""
    unreadable: tuple[str, ...] = ()
    """Files that it does not let this process read, one sentence each; those in `ranks` have their own."""
    earlier: tuple[Attempt, ...] = ()
    """The attempts before the last, as far as they can be read."""
    later_attempts: int = 0
    """Attempts after the one that is read, because an earlier one was chosen."""
    requests: tuple[WindowRequest, ...] = ()
    """Windows that were requested in the last attempt."""
    launcher: tuple[LauncherNote, ...] = ()
    """Processes of any attempt that did not end well, as the launcher saw them."""
    notices: tuple[HangNotice, ...] = ()
    """Answers about hangs of the last attempt, as the agents announced them, the first one first."""
    witnessed: tuple[WitnessedHost, ...] = ()
    """Hosts of the last attempt of which another host's agent kept a copy."""
    compared: tuple[tuple[RankRecords, ...], ...] = ()
    """Copies of ranks of several hosts, of which an agent saw that they disagree; one entry per agent."""
    operations: Operations | None = None
    """The table of operations that the run was imported from; None for every other run."""
    read_wall_ns: int | None = None
    """This host's wall clock when the records had been read; None if they were not read from a run directory."""
    logbook: Logbook | None = None
    """The list of runs and interruptions that the run was imported from, which then has no ranks; otherwise None."""

    @property
    def last_attempt(self) -> int:
        """Number of the attempt that is read in full."""
        return self.ranks[0].attempt if self.ranks else 0

    def batches(self, attempt: int) -> Mapping[int, RankBatches]:
        """Rank -> its batches in an attempt. Those of earlier attempts are read on demand."""
        if attempt != self.last_attempt:
            return read_batches(attempt_directory(self.path, attempt))
        return {rank.rank: rank_batches(rank.thread("main"), names=rank.names) for rank in self.ranks}


Reduce = Callable[[RankRecords], RankRecords]
"""What to keep of a rank, as soon as it was read."""


def _everything(rank: RankRecords) -> RankRecords:
    return rank


def read_run(path: str | Path, *, executor: Executor | None = None, reduce: Reduce = _everything) -> RunRecords:
    """Open a run directory, also while it is being written or after its writers were killed.

    `path` may be a parent that holds exactly one run, or a URL of either. Of a path to the directory of an attempt,
    this attempt is read as if no other had followed. The workers of `executor` read ranks, and
    must see the same files; without it, this process does. Of each rank, `reduce` keeps a part before the next rank is
    read. Raises NotARunError, EmptyRunError or VersionError, and
    DataError if the workers see no rank, each with advice. Damage to single ranks does not raise: it is listed in
    `problems`.
    """
    root, chosen = find_run(Path(path)), chosen_attempt(Path(path))
    info = read_run_info(root)
    if info.imported and (root / LOGBOOK_FILE).is_file():
        return _logged(root, info)
    place = root.absolute()  # workers may have another working directory
    numbered = {n: p for p in entries(place, "attempt-") if p.is_dir() and (n := attempt_number(p)) is not None}
    number = max(numbered, default=0) if chosen is None else chosen
    attempts = [numbered[n] for n in sorted(numbered) if n <= number]
    directories = entries(attempts[-1], "rank-") if attempts else []
    read = _read_all(directories, attempt=number, executor=executor, reduce=reduce)
    problems = read.problems
    ranks = _with_provisional(root, read, attempt=number) if number == max(numbered, default=0) else read.ranks
    notes = tuple(note for note in _read_notes(root, read) if note.attempt <= number)
    if not any(_has_records(rank) for rank in ranks):
        _require_readable(ranks, read.unreadable)
        raise EmptyRunError(f"{root} {_why_empty(ranks, notes, problems, attempt=number)}")
    witnessed = _read_witnessed(attempts[-1], attempt=number) if attempts else ()
    ranks, added = _with_last_seconds(ranks, witnessed)
    present = {rank.rank for rank in ranks}
    missing = tuple(rank for rank in range(info.world_size) if rank not in present and not info.imported)
    with refusals(root):
        return RunRecords(
            path=root,
            info=info,
            ranks=tuple(ranks),
            attempts=len(numbered),
            later_attempts=len(numbered) - len(attempts),
            missing=missing,
            problems=(*problems, *(shipping_problems(attempts[-1]) if attempts else ()), *added),
            refused=tuple(rank for rank in missing if rank in read.refused),
            unreadable=tuple(read.unreadable),
            earlier=tuple(earlier_attempts(attempts, notes=notes)),
            requests=read_requests(root, attempt=number),
            launcher=notes,
            notices=tuple(notice for notice in read_notices(root) if notice.attempt == number),
            witnessed=tuple(map(_in_one, witnessed)),
            compared=_read_compared(attempts[-1], attempt=number) if attempts else (),
            operations=read_operations(attempts[-1] / OPERATIONS_FILE) if attempts else None,
            read_wall_ns=time.time_ns(),
        )


def read_earlier(run: RunRecords, *, reduce: Reduce, max_bytes: int) -> Iterator[RunRecords]:
    """Read the attempts before the last, the newest first, until an attempt exceeds the rest of `max_bytes`.

    Of each rank, `reduce` keeps a part. Attempts without records are left out.
    """
    for attempt in reversed(run.earlier):
        directory = attempt_directory(run.path, attempt.number)
        directories = entries(directory, "rank-")
        max_bytes -= sum(path.stat().st_size for rank in directories for path in record_files(rank))
        if max_bytes < 0:
            return
        read = _read_ranks(directories, attempt=attempt.number, reduce=reduce)
        if any(_has_records(rank) for rank in read.ranks):
            kept = replace(run, ranks=tuple(read.ranks), earlier=(), requests=(), notices=(), witnessed=(), compared=())
            yield replace(kept, missing=(), problems=tuple(read.problems))


def require_readable(run: RunRecords) -> None:
    """Raise UnreadableError if the system refused to let any file of records be read: an export would lack it."""
    _require_readable(run.ranks, run.unreadable)


def _require_readable(ranks: Sequence[RankRecords], unreadable: Sequence[str]) -> None:
    for problem in (*unreadable, *(problem for rank in ranks for problem in rank.unreadable)):
        raise UnreadableError(problem)


def entries(directory: Path, begin: str) -> list[Path]:
    """Entries whose names begin so, in order. Raises UnreadableError if the directory may not be listed."""
    with refusals(directory):
        return sorted(path for path in directory.iterdir() if path.name.startswith(begin))


def _why_empty(
    ranks: Sequence[RankRecords], notes: Sequence[LauncherNote], problems: Sequence[str], *, attempt: int
) -> str:
    """Say why no rank has a record: how ranks ended before their first one, if that is known."""
    signals = [f"rank {rank.rank} got {name}" for rank in ranks for name in rank.info.signals]
    ended = [
        f"{'its launcher' if note.rank is None else f'rank {note.rank}'} {note.how}"
        for note in notes
        if note.attempt == attempt
    ]
    if signals or ended:
        how = "; ".join([*signals, *ended])
        return f"holds no records: {how}, before the first record. Read what the training wrote to its output"
    if not ranks:
        return "has been created, but no rank has recorded anything yet; try again once training runs"
    detail = f": {problems[0]}" if problems else ""
    return f"holds no records{detail}; try again once training has begun"


def _has_records(rank: RankRecords) -> bool:
    return bool(rank.traces or rank.memory_snapshots) or any(len(segment.records) for segment in rank.segments)


def _logged(root: Path, info: RunInfo) -> RunRecords:
    try:
        book = read_logbook(root / LOGBOOK_FILE)
    except DataError as error:
        raise RunDirectoryError(f"{error}; or import the list again") from error
    return RunRecords(path=root, info=info, ranks=(), attempts=len(book.runs), missing=(), problems=(), logbook=book)


def earlier_attempts(directories: list[Path], *, notes: tuple[LauncherNote, ...]) -> Iterator[Attempt]:
    """Summaries of all attempts but the last, in order, with the notes of the launcher and of the agents. Unreadable
    ones are left out.
    """
    noted = {note.attempt for note in notes if note.rank is not None}
    notices = () if len(directories) < 2 else read_notices(directories[0].parent)
    for attempt in read_attempts(directories):
        of_attempt = [notice for notice in notices if notice.attempt == attempt.number]
        hang = standing_notice(of_attempt, attempt.progress)
        yield replace(attempt, noted=attempt.number in noted, hang=hang)


def read_again(rank: RankRecords) -> RankRecords:
    """Read all records of a rank of which a part was kept, as `read_run` does. Raises RunDirectoryError if they cannot
    be read any more.
    """
    if rank.directory is None:
        return rank
    own = _read_rank(rank.directory, attempt=rank.attempt)
    if rank.copies is None:
        return own
    longer = _continued(own, _read_rank(rank.copies, attempt=rank.attempt))
    return own if longer is None else longer[0]


@dataclass(slots=True)
class _Read:
    """The ranks of some directories."""

    ranks: list[RankRecords] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """One sentence for each rank that cannot be read."""
    refused: list[int] = field(default_factory=list)
    """Ranks among them that the system does not let this process read."""
    unreadable: list[str] = field(default_factory=list)
    """Files that it does not let this process read, one sentence each."""

    def add(self, other: "_Read") -> None:
        self.ranks += other.ranks
        self.problems += other.problems
        self.refused += other.refused
        self.unreadable += other.unreadable

    def leave_out(self, directory: Path, error: UnreadableError) -> None:
        number = rank_number(directory)
        self.problems.append(f"{error}; {'its process' if number is None else f'rank {number}'} is left out")
        self.refused += [] if number is None else [number]
        self.unreadable.append(str(error))


def _read_all(directories: list[Path], *, attempt: int, executor: Executor | None, reduce: Reduce) -> _Read:
    """As `_read_ranks`, by the workers of the executor."""
    if executor is None or len(directories) <= RANKS_PER_TASK:
        return _read_ranks(directories, attempt=attempt, reduce=reduce)
    tasks = [directories[at : at + RANKS_PER_TASK] for at in range(0, len(directories), RANKS_PER_TASK)]
    result = _Read()
    for part in executor.map(partial(_read_ranks, attempt=attempt, reduce=reduce), tasks):
        result.add(part)
    if not result.ranks and _read_ranks(directories[:1], attempt=attempt).ranks:
        raise unseen_by_workers(directories[0].parent)
    return result


def unseen_by_workers(path: Path) -> DataError:
    """The error of an executor that reads nothing where this process reads ranks."""
    return DataError(
        f"the workers do not see {path}, and this process does; put the run on a file system of all workers, or read "
        "it with --processes"
    )


def _read_ranks(directories: list[Path], *, attempt: int, reduce: Reduce = _everything) -> _Read:
    """Read the ranks of these directories, as far as they can be read."""
    result = _Read()
    for directory in directories:
        try:
            with refusals(directory):
                result.ranks.append(reduce(_read_rank(directory, attempt=attempt)))
        except VersionError:
            raise
        except UnreadableError as error:
            result.leave_out(directory, error)
        except RunDirectoryError as error:
            result.problems.append(str(error))
    return result


def _read_witnessed(directory: Path, *, attempt: int) -> tuple[WitnessedHost, ...]:
    """Damaged copies are left out: the ranks' own directories are the record, and these only fill a gap."""
    return tuple(
        WitnessedHost(heard=heard, ranks=_read_copies(copies, attempt=attempt))
        for heard, copies in witnessed_hosts(directory)
    )


def _read_compared(directory: Path, *, attempt: int) -> tuple[tuple[RankRecords, ...], ...]:
    return tuple(_read_copies(copies, attempt=attempt) for copies in compared_by_hosts(directory))


def _read_copies(directory: Path, *, attempt: int) -> tuple[RankRecords, ...]:
    return tuple(_read_ranks(sorted(directory.glob("rank-*")), attempt=attempt).ranks)


def _in_one(host: WitnessedHost) -> WitnessedHost:
    """Join the successive copies of each rank."""
    return replace(host, ranks=tuple(replace(copy, segments=in_one(copy.segments)) for copy in host.ranks))


def _with_last_seconds(
    ranks: Sequence[RankRecords], witnessed: Sequence[WitnessedHost]
) -> tuple[list[RankRecords], list[str]]:
    """Add what witnesses alone have of the end of ranks that recorded no end, and report it: a host that ships its
    records may be lost between two rounds.
    """
    longest: dict[int, RankRecords] = {}
    for copy in (copy for host in witnessed for copy in host.ranks if copy.segments):
        if copy.rank not in longest or _last_ns(copy) > _last_ns(longest[copy.rank]):
            longest[copy.rank] = copy
    result, problems = list(ranks), []
    for at, own in enumerate(ranks):
        last = longest.get(own.rank)
        if last is None or own.info.ending is not None or own.running or last.info.process != own.info.process:
            continue
        longer = _continued(own, last)
        if longer is not None:
            result[at], added = longer
            problems += added
        elif (gap := gap_ns(own.segments, last.segments)) != (0, 0):
            problems.append(
                f"{gap[0] / 1e9:.1f} s of rank {own.rank} are missing after its last record here; another host has "
                f"copies of {gap[1] / 1e9:.1f} s after that, which the tables leave out"
            )
    return result, problems


def _continued(own: RankRecords, last: RankRecords) -> tuple[RankRecords, list[str]] | None:
    """The rank's records with those of its copies, and one sentence about each lack; None if the copies add nothing."""
    joined = continued(own.segments, last.segments)
    if joined is None:
        return None
    rank = replace(
        own,
        segments=joined.segments,
        names=(*own.names, *last.names[len(own.names) :]),
        groups=(*own.groups, *last.groups[len(own.groups) :]),
        copies=last.directory,
    )
    problems = [
        f"the last records of thread {thread} of rank {own.rank} are left out: another host has a copy of them, but "
        "records before them may be missing"
        for thread in joined.holes
    ]
    seconds = (_last_ns(rank) - _last_ns(own)) / 1e9
    if seconds:
        problems.insert(0, f"the last {seconds:.1f} s of rank {own.rank} are from copies that another host kept")
    return rank, problems


def _last_ns(rank: RankRecords) -> int:
    return max((last_instant_ns(segment.records) for segment in rank.segments), default=0)


def _read_notes(root: Path, read: _Read) -> tuple[LauncherNote, ...]:
    """The launcher's notes; none if the system refuses, which is noted in `read`."""
    try:
        with refusals(root):
            return read_notes(notes_path(root))
    except UnreadableError as error:
        read.problems.append(f"{error}; the launcher's notes are left out")
        read.unreadable.append(str(error))
        return ()


def _with_provisional(root: Path, read: _Read, *, attempt: int) -> list[RankRecords]:
    """Add ranks of this launch that ended before they joined a process group, the newest record of each. Its problems
    are noted in `read`.
    """
    provisional = _read_ranks(entries(root, PROVISIONAL), attempt=attempt)
    read.problems += provisional.problems
    read.unreadable += provisional.unreadable
    began_ns = min((rank.info.started_wall_ns for rank in read.ranks), default=0) - SAME_LAUNCH_NS
    present = {rank.rank: rank for rank in read.ranks}
    for rank in sorted(provisional.ranks, key=lambda rank: -rank.info.started_wall_ns):
        if rank.rank not in present and rank.info.started_wall_ns >= began_ns:
            present[rank.rank] = rank
            read.problems.append(f"rank {rank.rank} recorded, but never joined a process group")
    return [present[number] for number in sorted(present)]


def find_run(path: Path) -> Path:
    """Find the run directory at `path`, the only one inside it, or the only one whose name begins with its last part.
    Of the directory of an attempt, it is the run.

    Of a run behind a URL, it is a current local copy.

    Raises NotARunError if there is none, or more than one, or if it may not be read; as `local_copy` for a URL.
    """
    path = local_copy(run_by_name(path))
    try:
        return local_copy(_found_run(path))
    except PermissionError as error:
        raise NotARunError(
            f"{error.filename or path} may not be read by this user, so {path} is not a readable run; {SHARE}"
        ) from error


def chosen_attempt(path: Path) -> int | None:
    """The attempt whose directory in a run `path` is, or None."""
    number = attempt_number(path)
    return number if number is not None and (path.parent / RUN_FILE).is_file() and path.is_dir() else None


def _found_run(path: Path) -> Path:
    if not path.exists():
        raise NotARunError(f"{path} does not exist; give the directory that `traincope.run(out=...)` was given")
    if path.is_file():
        raise NotARunError(
            f"{path} is a file and not a run directory; make a run of a trace, table or snapshot first: "
            f"traincope import {path} -o RUN"
        )
    if (path / RUN_FILE).is_file():
        return path
    if chosen_attempt(path) is not None:
        return path.parent
    candidates = sorted(p.parent for p in path.glob(f"*/{RUN_FILE}")) if path.is_dir() else []
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = ", ".join(p.name for p in candidates[:5]) + (", ..." if len(candidates) > 5 else "")
        raise NotARunError(f"{path} holds {len(candidates)} runs ({names}); name one of them")
    raise NotARunError(f"{path} is not a run directory: it has no {RUN_FILE}; give the directory a run was recorded in")


def _read_rank(directory: Path, *, attempt: int) -> RankRecords:
    problems: list[str] = []
    info, running = _read_manifest(directory)
    if info.coord.rank != rank_number(directory) and not directory.name.startswith(PROVISIONAL):
        raise RunDirectoryError(
            f"{directory / RANK_FILE} belongs to rank {info.coord.rank}; the file is in the wrong directory"
        )
    refused: list[str] = []
    segments, files = [], record_files(directory)
    for path in files:
        try:
            segment = read_records(path)
        except VersionError:
            raise
        except RunDirectoryError as error:
            is_refused = isinstance(error, UnreadableError)
            problems.append(f"{error}; its records are left out" if is_refused else str(error))
            refused += [str(error)] if is_refused else []
            continue
        if segment.lost_bytes:
            problems.append(f"{path} is cut off in the middle of a record; {segment.lost_bytes} bytes of it are lost")
        if segment.garbled:
            problems.append(f"{path} is damaged: {segment.garbled:,} implausible records are left out")
        segments.append(segment)
    lines = read_numbered(directory / NAMES_FILE, version=info.version)
    names = dense_names(lines)
    known = np.array([number in lines for number in range(len(names))], dtype=bool)
    unnamed = sum(_count_unnamed(segment.records, known=known) for segment in segments)
    if unnamed:
        problems.append(f"{directory / NAMES_FILE} lacks the names of {unnamed:,} records; was the disk full?")
    num_missing, first = missing_segments(files, dropped=count_dropped(segments))
    if num_missing:
        more = f" (and {num_missing - 1} more)" if num_missing > 1 else ""
        problems.append(f"{directory / first}{more} is missing: the file was deleted")
    details = _details(directory, names=names, segments=segments, version=info.version)
    if info.ending is None and not running:
        info = replace(info, ending=_recorded_exception(_training_thread(segments), names=names, details=details))
    return RankRecords(
        attempt=attempt,
        info=info,
        names=names,
        groups=read_groups(directory / GROUPS_FILE, version=info.version),
        details=details,
        segments=tuple(segments),
        problems=tuple(problems),
        unreadable=tuple(refused),
        traces=tuple(trace_files(directory)),
        memory_snapshots=tuple(memory_files(directory)),
        running=running,
        looks=all_looks(directory, _training_thread(segments), process=info.process, running=running),
        flight=FlightFile(directory / FLIGHT_FILE),
        directory=directory,
        state_checks=StateCheckFile(directory),
    )


def _recorded_exception(
    main: NDArray[np.void], *, names: Sequence[str], details: Mapping[int, Mapping[str, Any]]
) -> str | None:
    """Type of the exception that left the run, by its event: the rank may be killed before its manifest has it."""
    for event in reversed(recorder_events(main)):
        number, kind = int(event["name"]), details.get(int(event["group"]), {}).get("type")
        if number < len(names) and names[number] == EXCEPTION and isinstance(kind, str):
            return kind
    return None


def _training_thread(segments: list[SegmentRecords]) -> NDArray[np.void]:
    """The last segment of the training thread; empty without one."""
    parts = [segment.records for segment in segments if segment.thread == "main"]
    return parts[-1] if parts else np.empty(0, dtype=RECORD_DTYPE)


def _read_manifest(directory: Path) -> tuple[RankInfo, bool | None]:
    """The manifest, and whether the process runs. An ended process may have written last, so the manifest is read
    again.
    """
    info = read_rank_info(directory)
    running = info.process.is_running() if info.ending is None and info.process is not None else None
    return (info if running is not False else read_rank_info(directory)), running


def _count_unnamed(records: NDArray[np.void], *, known: NDArray[np.bool_]) -> int:
    """Number of records whose name is missing in the names file."""
    numbers = records["name"][np.isin(records["kind"], NAMED_KINDS)]
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
