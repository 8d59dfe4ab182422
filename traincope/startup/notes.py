"""Notes from the processes under `traincope run` to the command, as lines in one file.

`interpreter/traincope_watch.py` writes notes with separate code, because it must not import traincope.
"""

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from traincope.store.job.launcher import NOTES_VARIABLE
from traincope.topology import Host

ABOVE_VARIABLE = "TRAINCOPE_ABOVE"
"""`interpreter/traincope_watch.py` sets it in a process that is a rank, or records, for those that it starts."""


class Note(StrEnum):
    """Kind of a note, the first word of its line."""

    PYTHON = "python"
    """An interpreter started."""
    TORCH = "torch"
    """A process imported torch."""
    TRAINS = "trains"
    """A process made a process group or an optimizer, and its recording began."""
    NO_TRAINCOPE = "no-traincope"
    """A process trains with an interpreter without traincope; with the interpreter's path."""
    OWN_RUN = "own-run"
    """A script calls `traincope.run()` itself; with its run directory."""
    BELOW = "below"
    """A process trains that a recorded rank started. It is not recorded, because it is not one of the job's ranks."""
    CHILD = "child"
    """A child process ended; with process id, exit code, time and host (`ChildEnd`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnd:
    """The end of a process, as its parent saw it."""

    pid: int
    exit_code: int
    """Negative: the signal that ended it."""
    at_wall_ns: int
    host: Host
    """Host of both processes. Several hosts may share the file, and their process ids overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """All notes of one command."""

    counts: Mapping[Note, int]
    """Kind -> number of notes."""
    without_traincope: tuple[str, ...]
    """Interpreters that train without traincope."""
    own_runs: tuple[str, ...]
    """Run directories of scripts that call `traincope.run()`."""
    ends: tuple[ChildEnd, ...]
    """Ends of children, in the order in which their parents saw them."""
    are_lost: bool = False
    """The file could not be made, or the command removed it."""


def write_note(kind: Note, what: object = "") -> None:
    """Append a note. Does nothing if the file does not exist."""
    with suppress(KeyError, OSError):
        descriptor = os.open(os.environ[NOTES_VARIABLE], os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, f"{kind} {what}\n".encode())
        finally:
            os.close(descriptor)


def read_notes(path: Path) -> Notes:
    """Read all notes so far; processes may still write. A lost file has none."""
    known = {str(kind): kind for kind in Note}
    try:
        are_lost = not path.is_file()  # a pipe in its place would never end
        text = "" if are_lost else path.read_text(errors="replace")
    except OSError:
        text, are_lost = "", True
    lines = [line.partition(" ") for line in text.splitlines()]
    notes = [(known[kind], what) for kind, _, what in lines if kind in known]
    return Notes(
        counts=Counter(kind for kind, _ in notes),
        without_traincope=tuple(dict.fromkeys(what for kind, what in notes if kind is Note.NO_TRAINCOPE)),
        own_runs=tuple(dict.fromkeys(what for kind, what in notes if kind is Note.OWN_RUN)),
        ends=tuple(end for kind, what in notes if kind is Note.CHILD and (end := _child_end(what)) is not None),
        are_lost=are_lost,
    )


def _child_end(what: str) -> ChildEnd | None:
    """Parse an end; None if the line is incomplete."""
    try:
        pid, exit_code, at_wall_ns, name, *boot_id = what.split()
        numbers = int(pid), int(exit_code), int(at_wall_ns)
    except ValueError:
        return None
    host = Host(name=name, boot_id=" ".join(boot_id))
    return ChildEnd(pid=numbers[0], exit_code=numbers[1], at_wall_ns=numbers[2], host=host)
