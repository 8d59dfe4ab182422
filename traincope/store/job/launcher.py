"""Endings of ranks as the launcher saw them, one JSON line each. A killed rank cannot record its own end."""

import json
import signal
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from traincope.private_files import make_directory, private
from traincope.store.layout import LAUNCHER_FILE, attempt_number
from traincope.store.lines import parse

SECOND_NS = 1_000_000_000
LAUNCHER_KILLS_NS = 20 * SECOND_NS
"""A SIGKILL this long after the first failure is the launcher's: torchrun sends it 30 s after its SIGTERM."""

NOTES_VARIABLE = "TRAINCOPE_NOTES"
"""Environment variable with the path of the file of notes for the `traincope run` above a process. Writers never create
it: on another host it does not exist and has no reader.
"""
FIRST_ATTEMPT_VARIABLE = "TRAINCOPE_FIRST_ATTEMPT"
"""Environment variable with the number of a launch's first attempt, if it continues a run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherNote:
    """One process that did not end well, or the end of the launcher itself."""

    attempt: int
    rank: int | None
    """None for the launcher itself."""
    exit_code: int
    """Negative: the signal that ended the process, or for the launcher the signal that stopped it."""
    first: bool
    """True if the launcher takes this process for the cause of the other endings."""
    at_wall_ns: int
    """Wall time when the launcher noticed the end; torchrun reports whole seconds."""
    noticed_wall_ns: int | None = None
    """The same exactly, if it is known."""

    @property
    def how(self) -> str:
        """The end of the process, as the predicate of a sentence."""
        return f"was killed (signal {-self.exit_code})" if self.exit_code < 0 else f"exited with code {self.exit_code}"


def culprit_first(notes: Sequence[LauncherNote]) -> tuple[LauncherNote, ...]:
    """Sort the endings of one attempt so that the likely cause comes first, and mark it.

    The cause is a killed rank, or otherwise the rank that failed first. The peers of a killed rank fail on the lost
    connection, and the launcher may notice them before the killed rank. SIGTERM mostly comes from the launcher itself,
    and a lost connection can end in an abort, so neither counts as killed. Neither does a SIGKILL long after the first
    failure: it ends a rank that waits in native code, where its handler of SIGTERM does not run. Among ranks that
    failed in the same second the one noticed first counts.
    """
    since_ns = min((note.at_wall_ns for note in notes if note.exit_code != -signal.SIGTERM), default=0)
    ordered = sorted(notes, key=lambda note: _suspicion(note, since_ns=since_ns))
    return tuple(replace(note, first=position == 0) for position, note in enumerate(ordered))


def _suspicion(note: LauncherNote, *, since_ns: int) -> tuple[bool, int]:
    killed = note.exit_code < 0 and -note.exit_code not in (signal.SIGTERM, signal.SIGABRT)
    if note.exit_code == -signal.SIGKILL and note.at_wall_ns - since_ns >= LAUNCHER_KILLS_NS:
        killed = False
    return not killed, note.at_wall_ns // SECOND_NS


def append_notes(path: Path, notes: Iterable[LauncherNote]) -> None:
    """Append notes to the file; without notes the file is not created. Raises OSError if it cannot be written."""
    lines = [json.dumps(asdict(note)) + "\n" for note in notes]
    if not lines:
        return
    make_directory(path.parent, exist_ok=True)
    with open(path, "a", encoding="utf-8", opener=private) as file:
        file.writelines(lines)


def read_notes(path: Path) -> tuple[LauncherNote, ...]:
    """Read the complete lines of `launcher.jsonl`, in order; empty if the file does not exist."""
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return tuple(note for line in lines if (note := _note(parse(line))) is not None)


def notes_path(run: Path) -> Path:
    """Path of the notes in a run directory."""
    return run / LAUNCHER_FILE


def next_attempt(run: Path) -> int:
    """Number of the first attempt that no launch in this run directory has begun; 0 in a new one."""
    begun = [attempt_number(path) for path in run.glob("attempt-*")]
    noted = [note.attempt for note in read_notes(notes_path(run))]
    return max([number for number in (*begun, *noted) if number is not None], default=-1) + 1


def _note(raw: object) -> LauncherNote | None:
    if not isinstance(raw, dict):
        return None
    attempt, rank, exit_code, at_wall_ns = (raw.get(name) for name in ("attempt", "rank", "exit_code", "at_wall_ns"))
    if type(attempt) is not int or type(exit_code) is not int or type(at_wall_ns) is not int:
        return None
    noticed = raw.get("noticed_wall_ns")
    return LauncherNote(
        attempt=attempt,
        rank=rank if type(rank) is int else None,
        exit_code=exit_code,
        first=raw.get("first") is True,
        at_wall_ns=at_wall_ns,
        noticed_wall_ns=noticed if type(noticed) is int else None,
    )
