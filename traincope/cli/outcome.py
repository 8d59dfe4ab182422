"""What `traincope run` says when the command has ended: where it was recorded, or why it was not."""

import os
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TextIO

from traincope.cli.training import program
from traincope.record.options import OFF_SWITCH
from traincope.startup.notes import Note, Notes
from traincope.units import count

BY_HAND = "put `with traincope.run():` around the training"


def say(out: Path, *, new: frozenset[Path], seen: Notes, file: TextIO) -> None:
    """`new`: the directories that processes have recorded in."""
    for line in _recorded(out, new=new) if new else _unrecorded(out, seen=seen):
        print(f"traincope: {line}", file=file)


def _recorded(out: Path, *, new: frozenset[Path]) -> Iterator[str]:
    shown, attempts = _short(out), {rank.parent for rank in new}
    ranks = count(len({rank.name for rank in new}), "rank")
    more = f", {len(attempts)} times; the report is of the last" if len(attempts) > 1 else ""
    yield f"recorded {ranks} in {shown}{more}"
    yield f"see where the time went:  {program()} report {quote(shown)}"


def _unrecorded(out: Path, *, seen: Notes) -> Iterator[str]:
    if seen.own_runs:
        yield from _own(seen, out)
    else:
        yield f"nothing was recorded: {_why(out, seen=seen)}"


def _own(seen: Notes, out: Path) -> Iterator[str]:
    places = [_short(Path(place)) for place in seen.own_runs if place] or [_short(out)]
    yield f"the script calls traincope.run() itself, so that is what counts; it recorded in {', '.join(places)}"
    yield f"see where the time went:  {program()} report {quote(places[-1])}"


def _why(out: Path, *, seen: Notes) -> str:
    """The first thing that was missing, and what to do."""
    if os.environ.get(OFF_SWITCH, "").lower() in ("off", "0"):
        return f"{OFF_SWITCH}={os.environ[OFF_SWITCH]} switches recording off; unset it"
    if not seen.counts.get(Note.PYTHON):
        return (
            "no Python of 3.11 or newer started with this environment. Was it started with -I, -E or -S, in a "
            f"container, or on another host? There, {BY_HAND}"
        )
    if seen.without_traincope:
        interpreters = ", ".join(seen.without_traincope)
        return f"it trained in {interpreters}, where traincope is not installed; install it there"
    if not seen.counts.get(Note.TORCH):
        return f"{count(seen.counts[Note.PYTHON], 'Python process')} ran, and none imported torch"
    if not seen.counts.get(Note.TRAINS):
        return (
            "torch was imported, but nobody made a process group or an optimizer of torch.optim; if it trains, "
            + BY_HAND
        )
    return f"recording was begun, but nothing could be written to {_short(out)}; the warnings above say why"


def _short(path: Path) -> str:
    """Relative to here where it lies below: that is how it was given."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
