"""What the launcher saw of the ranks' ends, a JSON line each: a rank that was killed cannot tell."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from traincope.store.layout import LAUNCHER_FILE
from traincope.store.lines import parse


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherNote:
    """One process that did not end well."""

    attempt: int
    rank: int | None
    """None: the launcher itself was told to stop."""
    exit_code: int
    """Negative: the signal that ended it."""
    first: bool
    """Whether the launcher holds this one to be the cause of the others' ends."""
    at_wall_ns: int
    """When the launcher noticed, in whole seconds of wall time."""


def append_notes(path: Path, notes: Iterable[LauncherNote]) -> None:
    """Raises OSError where it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(note)) + "\n" for note in notes)


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
