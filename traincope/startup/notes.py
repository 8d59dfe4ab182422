"""Notes from the processes under `traincope run` to the command, as lines in one file.

`interpreter/traincope_watch.py` writes notes with separate code, because it must not import traincope.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
    RANK = "rank"
    """The first process of a launcher's rank started; with process id, rank, time and host (`StartedRank`)."""
    JOINS = "joins"
    """Such a process called `init_process_group` for the first time; with its id and host."""
    OWN_RUN = "own-run"
    """A script calls `traincope.run()` itself; with its run directory."""
    BELOW = "below"
    """A process trains that a recorded rank started. It is not recorded, because it is not one of the job's ranks."""
    CHILD = "child"
    """A child process ended; with process id, exit code, time and host (`ChildEnd`)."""

    STOPPED = "stopped"
    """A signal stopped a torchrun; as a note of a child's end."""


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
class StartedRank:
    """The first process of a launcher's rank."""

    pid: int
    rank: int
    began_wall_ns: int
    host: Host
    joins: bool
    """It called `init_process_group`."""


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
    stops: tuple[ChildEnd, ...] = ()
    """Ends of launchers that a signal stopped, by themselves."""
    started: tuple[StartedRank, ...] = ()
    """Ranks of launchers, in the order in which they started."""
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
        ends=tuple(_ends(notes, Note.CHILD)),
        stops=tuple(_ends(notes, Note.STOPPED)),
        started=tuple(_started(notes)),
        are_lost=are_lost,
    )


def _started(notes: Sequence[tuple[Note, str]]) -> Iterator[StartedRank]:
    joining = {what.strip() for kind, what in notes if kind is Note.JOINS}
    for kind, what in notes:
        numbers, host = _numbers_and_host(what) if kind is Note.RANK else ((), None)
        if host is not None:
            pid, rank, began_wall_ns = numbers
            joins = f"{pid} {host.name} {host.boot_id}".strip() in joining
            yield StartedRank(pid=pid, rank=rank, began_wall_ns=began_wall_ns, host=host, joins=joins)


def _ends(notes: Sequence[tuple[Note, str]], of_kind: Note) -> Iterator[ChildEnd]:
    return (end for kind, what in notes if kind is of_kind and (end := _child_end(what)) is not None)


def _child_end(what: str) -> ChildEnd | None:
    """Parse an end; None if the line is incomplete."""
    numbers, host = _numbers_and_host(what)
    if host is None:
        return None
    return ChildEnd(pid=numbers[0], exit_code=numbers[1], at_wall_ns=numbers[2], host=host)


def _numbers_and_host(what: str) -> tuple[tuple[int, ...], Host | None]:
    """Parse three numbers, and a host by name and boot id; no host if the line is incomplete."""
    try:
        first, second, third, name, *boot_id = what.split()
        numbers = int(first), int(second), int(third)
    except ValueError:
        return (), None
    return numbers, Host(name=name, boot_id=" ".join(boot_id))
