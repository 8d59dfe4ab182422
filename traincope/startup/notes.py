"""One file that every process under `traincope run` adds a line to, so that the command can say what it saw.

`interpreter/traincope_watch.py` writes to it too, with code of its own: it must not import traincope.
"""

import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from traincope.topology import Host

NOTES_VARIABLE = "TRAINCOPE_NOTES"
"""Where the file is. It is never made by those who write: on another host there is none, and nobody reads."""


class Note(StrEnum):
    """First word of a line."""

    PYTHON = "python"
    """An interpreter started."""
    TORCH = "torch"
    """It imported torch."""
    TRAINS = "trains"
    """It made a process group or an optimizer, and a recording was begun."""
    NO_TRAINCOPE = "no-traincope"
    """It would have, but this interpreter has no traincope: its path."""
    OWN_RUN = "own-run"
    """The script calls `traincope.run()` itself: the directory it gave."""
    CHILD = "child"
    """A child of it ended: process id, code, when, and on which host (`ChildEnd`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnd:
    """How some process ended, as its parent learnt it."""

    pid: int
    exit_code: int
    """Negative: the signal that ended it."""
    at_wall_ns: int
    host: Host
    """Of both: the file of notes may be seen by several hosts, and their process ids are the same numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What the processes told."""

    counts: Mapping[Note, int]
    """Kind -> processes."""
    without_traincope: tuple[str, ...]
    """Interpreters that train and have no traincope."""
    own_runs: tuple[str, ...]
    """Directories that scripts record to by themselves."""
    ends: tuple[ChildEnd, ...]
    """In the order in which parents learnt of them."""


def write_note(kind: Note, what: object = "") -> None:
    """Add a line; where nobody reads it nothing happens."""
    with suppress(KeyError, OSError):
        descriptor = os.open(os.environ[NOTES_VARIABLE], os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, f"{kind} {what}\n".encode())
        finally:
            os.close(descriptor)


def read_notes(path: Path) -> Notes:
    """All lines so far, whoever still writes."""
    known = {str(kind): kind for kind in Note}
    lines = [line.partition(" ") for line in path.read_text(errors="replace").splitlines()]
    notes = [(known[kind], what) for kind, _, what in lines if kind in known]
    return Notes(
        counts=Counter(kind for kind, _ in notes),
        without_traincope=tuple(dict.fromkeys(what for kind, what in notes if kind is Note.NO_TRAINCOPE)),
        own_runs=tuple(dict.fromkeys(what for kind, what in notes if kind is Note.OWN_RUN)),
        ends=tuple(end for kind, what in notes if kind is Note.CHILD and (end := _child_end(what)) is not None),
    )


def _child_end(what: str) -> ChildEnd | None:
    """None where the line was cut short."""
    try:
        pid, exit_code, at_wall_ns, name, *boot_id = what.split()
        numbers = int(pid), int(exit_code), int(at_wall_ns)
    except ValueError:
        return None
    host = Host(name=name, boot_id=" ".join(boot_id))
    return ChildEnd(pid=numbers[0], exit_code=numbers[1], at_wall_ns=numbers[2], host=host)
