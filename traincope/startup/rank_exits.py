"""Ends of ranks, from the ends of processes: every rank recorded its process id."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from traincope.errors import RunDirectoryError
from traincope.startup.notes import ChildEnd, StartedRank
from traincope.store.job.launcher import LauncherNote, culprit_first
from traincope.store.job.manifests import RankInfo, read_rank_info
from traincope.store.layout import PROVISIONAL, attempt_number


def failed_exits(
    run: Path, *, ends: Sequence[ChildEnd], started: Sequence[StartedRank] = (), since_wall_ns: int
) -> tuple[LauncherNote, ...]:
    """Return a note for every rank of `run` that began after `since_wall_ns` and whose process failed by `ends`; also
    for those of the `started` ranks that recorded nothing in the last attempt.
    """
    notes_by_attempt: dict[int, list[LauncherNote]] = {}
    ranks, last = list(_ranks(run)), _last_attempt(run)
    present = {rank.coord.rank for attempt, rank in ranks if attempt == last}
    for silent, end in ends_of([each for each in started if each.rank not in present], ends):
        if end.exit_code and silent.began_wall_ns >= since_wall_ns:
            notes_by_attempt.setdefault(last, []).append(_note(silent.rank, end, attempt=last))
    for attempt, rank in ranks:
        seen = _end_of(rank, ends) if rank.started_wall_ns >= since_wall_ns else None
        if seen is not None and seen.exit_code:
            notes_by_attempt.setdefault(attempt, []).append(_note(rank.coord.rank, seen, attempt=attempt))
    return tuple(
        note
        for attempt in sorted(notes_by_attempt)
        for note in culprit_first(sorted(notes_by_attempt[attempt], key=_noticed))
    )


def ends_of(started: Sequence[StartedRank], ends: Sequence[ChildEnd]) -> Iterator[tuple[StartedRank, ChildEnd]]:
    """Yield the latest process of each rank that ended, with its end."""
    for each in {each.rank: each for each in started}.values():
        of_process = (end for end in ends if (end.pid, end.host) == (each.pid, each.host))
        end = next((end for end in of_process if end.at_wall_ns >= each.began_wall_ns), None)
        if end is not None:
            yield each, end


def failed_first(started: Sequence[StartedRank], ends: Sequence[ChildEnd]) -> tuple[StartedRank, ChildEnd] | None:
    """Return the rank that is the likely cause of the others' ends, with its end; None if none failed by itself."""
    failed = {
        rank.rank: (rank, end) for rank, end in ends_of(started, ends) if end.exit_code not in (0, -signal.SIGTERM)
    }
    notes = sorted((_note(rank, end, attempt=0) for rank, (_, end) in failed.items()), key=_noticed)
    return next((failed[note.rank] for note in culprit_first(notes) if note.rank is not None), None)


def end_of_all(run: Path, *, exit_code: int, at_wall_ns: int) -> LauncherNote:
    """Return a note that the last attempt's launcher ended, with its exit code or its signal (negative)."""
    return LauncherNote(attempt=_last_attempt(run), rank=None, exit_code=exit_code, first=False, at_wall_ns=at_wall_ns)


def has_silent_rank(run: Path, *, noted: Sequence[LauncherNote], since_wall_ns: int) -> bool:
    """True if a rank that began after `since_wall_ns` recorded no end and has no note."""
    known = {(note.attempt, note.rank) for note in noted}
    return any(
        rank.ending is None and rank.started_wall_ns >= since_wall_ns and (attempt, rank.coord.rank) not in known
        for attempt, rank in _ranks(run)
    )


def has_other_ranks(run: Path, *, since_wall_ns: int) -> bool:
    """True if other processes than this one began to record in `run` after `since_wall_ns`."""
    return any(rank.started_wall_ns >= since_wall_ns and rank.pid != os.getpid() for _, rank in _ranks(run))


def _ranks(run: Path) -> Iterator[tuple[int, RankInfo]]:
    """Attempt and rank info. A rank that never joined the others belongs to the last attempt, as in the report."""
    for directory in sorted((*run.glob("attempt-*/rank-*"), *run.glob(f"{PROVISIONAL}*"))):
        attempt = attempt_number(directory.parent)
        try:
            yield _last_attempt(run) if attempt is None else attempt, read_rank_info(directory)
        except RunDirectoryError:
            continue  # the report names it


def _end_of(rank: RankInfo, ends: Sequence[ChildEnd]) -> ChildEnd | None:
    """The first end of its process id on its host after its start. A later end belongs to another process."""
    began_ns, process = rank.started_wall_ns, (rank.pid, rank.host)
    return next((end for end in ends if (end.pid, end.host) == process and end.at_wall_ns >= began_ns), None)


def _note(rank: int, end: ChildEnd, *, attempt: int) -> LauncherNote:
    return LauncherNote(attempt=attempt, rank=rank, exit_code=end.exit_code, first=False, at_wall_ns=end.at_wall_ns)


def _noticed(note: LauncherNote) -> int:
    return note.at_wall_ns


def _last_attempt(run: Path) -> int:
    return max((attempt_number(path) or 0 for path in run.glob("attempt-*")), default=0)
