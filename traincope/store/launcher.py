"""What the launcher saw of the ranks' ends, a JSON line each: a rank that was killed cannot tell."""

import json
import signal
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from traincope.store.layout import LAUNCHER_FILE
from traincope.store.lines import parse

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherNote:
    """One process that did not end well, or the launcher's own end."""

    attempt: int
    rank: int | None
    """None: the launcher itself."""
    exit_code: int
    """Negative: the signal that ended it; the launcher, that told it to stop."""
    first: bool
    """Whether the launcher holds this one to be the cause of the others' ends."""
    at_wall_ns: int
    """Wall time when the launcher noticed; torchrun tells whole seconds."""


def culprit_first(notes: Sequence[LauncherNote]) -> tuple[LauncherNote, ...]:
    """The ends of one attempt, in the order they were noticed -> the likely cause of the others marked and first.

    That is who was killed, else who failed first: when a rank is killed its peers fail on the lost
    connection, and may be noticed before it. SIGTERM is mostly the launcher's own, and an abort is what
    a peer's lost connection can end in. Of those that failed in the same second, the one noticed first.
    """
    ordered = sorted(notes, key=_suspicion)
    return tuple(replace(note, first=position == 0) for position, note in enumerate(ordered))


def _suspicion(note: LauncherNote) -> tuple[bool, int]:
    killed = note.exit_code < 0 and -note.exit_code not in (signal.SIGTERM, signal.SIGABRT)
    return not killed, note.at_wall_ns // SECOND_NS


def append_notes(path: Path, notes: Iterable[LauncherNote]) -> None:
    """Without notes no file is made. Raises OSError where it cannot be written."""
    lines = [json.dumps(asdict(note)) + "\n" for note in notes]
    if not lines:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(lines)


def read_notes(path: Path) -> tuple[LauncherNote, ...]:
    """The whole lines of `launcher.jsonl`, in order; none where there is no such file."""
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return tuple(note for line in lines if (note := _note(parse(line))) is not None)


def notes_of(run: Path) -> Path:
    """Where a run directory has them."""
    return run / LAUNCHER_FILE


def _note(raw: object) -> LauncherNote | None:
    if not isinstance(raw, dict):
        return None
    attempt, rank, exit_code, at_wall_ns = (raw.get(name) for name in ("attempt", "rank", "exit_code", "at_wall_ns"))
    if type(attempt) is not int or type(exit_code) is not int or type(at_wall_ns) is not int:
        return None
    return LauncherNote(
        attempt=attempt,
        rank=rank if type(rank) is int else None,
        exit_code=exit_code,
        first=raw.get("first") is True,
        at_wall_ns=at_wall_ns,
    )
