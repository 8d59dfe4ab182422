"""Which of the processes that ended badly were ranks: every rank has written down its process id."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from traincope.errors import RunDirectoryError
from traincope.startup.notes import ChildEnd
from traincope.store.cards import RankInfo, read_rank_info
from traincope.store.launcher import LauncherNote, culprit_first
from traincope.store.layout import PROVISIONAL, attempt_number


def deaths(run: Path, *, ends: Sequence[ChildEnd], since_wall_ns: int) -> tuple[LauncherNote, ...]:
    """A note of every rank of `run`, begun since then, whose process ended badly by `ends`."""
    found: dict[int, list[LauncherNote]] = {}
    for attempt, rank in _ranks(run):
        end = _end_of(rank, ends) if rank.started_wall_ns >= since_wall_ns else None
        if end is not None and end.exit_code:
            found.setdefault(attempt, []).append(_note(rank.coord.rank, end, attempt=attempt))
    return tuple(note for attempt in sorted(found) for note in culprit_first(sorted(found[attempt], key=_noticed)))


def end_of_all(run: Path, *, exit_code: int, at_wall_ns: int) -> LauncherNote:
    """That what launched the last attempt has ended: by its own exit code, or told to stop by a signal (negative)."""
    return LauncherNote(attempt=_last_attempt(run), rank=None, exit_code=exit_code, first=False, at_wall_ns=at_wall_ns)


def has_silent_rank(run: Path, *, noted: Sequence[LauncherNote], since_wall_ns: int) -> bool:
    """Whether a rank begun since then has told no end, and nobody who could see it has."""
    known = {(note.attempt, note.rank) for note in noted}
    return any(
        rank.ending is None and rank.started_wall_ns >= since_wall_ns and (attempt, rank.coord.rank) not in known
        for attempt, rank in _ranks(run)
    )


def _ranks(run: Path) -> Iterator[tuple[int, RankInfo]]:
    """Attempt and rank; one that never met the others counts to the last attempt, as for whoever reads the run."""
    for directory in sorted((*run.glob("attempt-*/rank-*"), *run.glob(f"{PROVISIONAL}*"))):
        attempt = attempt_number(directory.parent)
        try:
            yield _last_attempt(run) if attempt is None else attempt, read_rank_info(directory)
        except RunDirectoryError:
            continue  # whoever reads the run says so


def _end_of(rank: RankInfo, ends: Sequence[ChildEnd]) -> ChildEnd | None:
    """The first end of its process id on its host after it began: a later one is that of another process."""
    began_ns, who = rank.started_wall_ns, (rank.pid, rank.host)
    return next((end for end in ends if (end.pid, end.host) == who and end.at_wall_ns >= began_ns), None)


def _note(rank: int, end: ChildEnd, *, attempt: int) -> LauncherNote:
    return LauncherNote(attempt=attempt, rank=rank, exit_code=end.exit_code, first=False, at_wall_ns=end.at_wall_ns)


def _noticed(note: LauncherNote) -> int:
    return note.at_wall_ns


def _last_attempt(run: Path) -> int:
    return max((attempt_number(path) or 0 for path in run.glob("attempt-*")), default=0)
