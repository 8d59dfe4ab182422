"""Last lines of `traincope run`: the verdict in five lines and the run's path, or why nothing was recorded."""

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote

from traincope.cli.launch.training import program
from traincope.record.session.options import OFF_SWITCH
from traincope.startup.notes import Note, Notes
from traincope.units import count, size

MAX_BYTES = 256 << 20
"""Larger runs are not analyzed here, because it would take too long."""
MAX_SECONDS = 30
BY_HAND = "put `with traincope.run():` around the training"


def print_outcome(out: Path, *, new: frozenset[Path], process_notes: Notes) -> None:
    """Print the outcome on standard error. `new` are the directories that processes recorded in."""
    lines = _recorded(out, process_notes, new=new) if new else _unrecorded(out, process_notes=process_notes)
    for line in lines:
        say(line)


def say(line: str) -> None:
    """Print a line of traincope between the command's own on standard error, wrapped if that is a terminal."""
    text = f"traincope: {line}"
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr)


def _recorded(out: Path, process_notes: Notes, *, new: frozenset[Path]) -> Iterator[str]:
    shown, attempts = _short(out), {rank.parent for rank in new}
    ranks = count(len({rank.name for rank in new}), "rank")
    more = f", {len(attempts)} times; the report shows the last" if len(attempts) > 1 else ""
    yield f"recorded {ranks} in {shown}{more}"
    below = process_notes.counts.get(Note.BELOW)
    if below:
        programs = count(below, "torch program")
        yield f"not recorded: {programs} that a rank started, or ranks started after a first step"
    yield from _verdict(out)
    yield f"the whole report:  {program()} report {quote(shown)}"


def _unrecorded(out: Path, *, process_notes: Notes) -> Iterator[str]:
    if process_notes.own_runs:
        yield from _own_runs(process_notes, out)
    else:
        yield f"nothing was recorded: {_why(out, process_notes=process_notes)}"


def _own_runs(process_notes: Notes, out: Path) -> Iterator[str]:
    places = [_short(Path(place)) for place in process_notes.own_runs if place] or [_short(out)]
    yield f"the command itself recorded in {', '.join(places)}"
    yield from _verdict(Path(places[-1]))
    yield f"the whole report:  {program()} report {quote(places[-1])}"


def _verdict(run: Path) -> Iterator[str]:
    """At most four lines, from a separate process, so that the analysis cannot make the command fail."""
    try:
        num_bytes = sum(path.stat().st_blocks for path in run.rglob("*")) * 512
        if num_bytes > MAX_BYTES:
            yield f"no verdict here: the run is large ({size(num_bytes)}) and its report takes longer"
            return
        words = (sys.executable, "-P", "-m", "traincope.cli.main", "report", str(run), "--brief")
        ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired:
        yield f"no verdict here: its analysis takes more than {MAX_SECONDS} s"
    except (OSError, ValueError) as error:
        yield f"no verdict here: {error}"
    except KeyboardInterrupt:
        yield "no verdict here: its analysis was interrupted"
    else:
        lines = ended.stdout.splitlines()
        failed = (ended.stderr.splitlines() or [f"its analysis ended with code {ended.returncode}"])[-1]
        yield from lines if not ended.returncode else [f"no verdict here: {failed}"]


def _why(out: Path, *, process_notes: Notes) -> str:
    """The first missing condition, and what to do."""
    if os.environ.get(OFF_SWITCH, "").lower() in ("off", "0"):
        return f"{OFF_SWITCH}={os.environ[OFF_SWITCH]} switches recording off; unset it"
    if process_notes.are_lost:
        return (
            "its processes could not report. The command removed their file, or no directory for temporary files can "
            "be written; set TMPDIR"
        )
    if not process_notes.counts.get(Note.PYTHON):
        return (
            "no Python 3.11 or newer started with this environment. If it runs with -I, -E or -S, in a container "
            f"or on another host, {BY_HAND}"
        )
    if process_notes.without_traincope:
        interpreters = ", ".join(process_notes.without_traincope)
        return f"it trained in {interpreters}, where traincope is not installed; install it there"
    if not process_notes.counts.get(Note.TORCH):
        return f"{count(process_notes.counts[Note.PYTHON], 'Python process')} ran, but torch was not imported"
    if not process_notes.counts.get(Note.TRAINS):
        return (
            "torch was imported, but no process group and no optimizer of torch.optim was made; if it trains, "
            + BY_HAND
        )
    return f"recording began, but nothing could be written to {_short(out)}; see the warnings above"


def _short(path: Path) -> str:
    """The path, relative to the current directory if that exists and it is below it."""
    with suppress(OSError, ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
