"""Last lines of `traincope run`: the run's path, its brief, and the next command; or why nothing was recorded."""

import os
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shlex import quote

from traincope.cli.launch.training import program
from traincope.record.session.options import OFF_SWITCH
from traincope.startup.notes import Note, Notes
from traincope.startup.rank_exits import failed_first
from traincope.store.layout import DEFAULT_ROOT
from traincope.units import count, numbers, size

MAX_BYTES = 256 << 20
"""Larger runs are not analyzed here, because it would take too long."""
MAX_SECONDS = 30
UNREAD_SECONDS = 10
"""Longest wait for a reader of standard error, for all lines together."""
FILE_WIDTH = 100
NO_VERDICT = "traincope: no verdict here: "
BY_HAND = "put `with traincope.run():` around the training"


def print_outcome(out: Path, *, new: frozenset[Path], process_notes: Notes) -> None:
    """Print the outcome on standard error. `new` are the directories that processes recorded in."""
    if new:
        _print_recorded(out, process_notes, new=new)
    elif process_notes.own_runs:
        places = [Path(place) for place in process_notes.own_runs if place] or [out]
        say(f"the command itself recorded in {', '.join(map(_short, places))}")
        print_brief(places[-1])
    else:
        say(f"nothing was recorded: {_why(out, process_notes=process_notes)}")


def say(line: str) -> None:
    """Print a line of traincope between the command's own on standard error, wrapped if that is a terminal."""
    text = f"traincope: {line}"
    if sys.stderr.isatty():
        text = textwrap.fill(text, _width(), subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False)
    _print(text)


def print_brief(run: Path) -> None:
    """Print the brief of a run and the next command, on standard error."""
    for line in _brief(run):
        _print(line)
    say(f"next: {program()} report {quote(run_name(run))}")


def _print(text: str) -> None:
    """Print on standard error. A pipe that nothing reads gets no line: this process ends as the command did."""
    global _patience_seconds
    poll, began = select.poll(), time.monotonic()
    poll.register(2, select.POLLOUT)
    if poll.poll(1000 * max(_patience_seconds, 0)):
        print(text, file=sys.stderr)
    _patience_seconds -= time.monotonic() - began


_patience_seconds: float = UNREAD_SECONDS


def run_name(run: Path) -> str:
    """The shortest text that means this run to every command in this directory: its name, or its path."""
    if run.absolute().parent == Path(DEFAULT_ROOT).absolute() and not Path(run.name).exists():
        return run.name
    return _short(run)


def _print_recorded(out: Path, process_notes: Notes, *, new: frozenset[Path]) -> None:
    attempts = {rank.parent for rank in new}
    ranks = count(len({rank.name for rank in new}), "rank")
    more = f", {len(attempts)} times; the report shows the last" if len(attempts) > 1 else ""
    say(f"recorded {ranks} in {_short(out)}{more}")
    below = process_notes.counts.get(Note.BELOW)
    if below:
        programs = count(below, "torch program")
        say(f"not recorded: {programs} that a rank started, or ranks started after a first step")
    print_brief(out)


def _brief(run: Path) -> Iterator[str]:
    """Lines from a separate process, so that the analysis cannot make the command fail."""
    try:
        num_bytes = sum(path.stat().st_blocks for path in run.rglob("*")) * 512
        if num_bytes > MAX_BYTES:
            yield f"{NO_VERDICT}the run is large ({size(num_bytes)}) and its report takes longer"
            return
        words = (sys.executable, "-P", "-m", "traincope.cli.main", "report", str(run), "--brief", "--keep")
        encoding = sys.stderr.encoding or "ascii"
        environment = {**os.environ, "COLUMNS": str(_width()), "PYTHONIOENCODING": encoding}
        ended = subprocess.run(
            words, capture_output=True, check=False, timeout=MAX_SECONDS, env=environment, encoding=encoding
        )
    except subprocess.TimeoutExpired:
        yield f"{NO_VERDICT}its analysis takes more than {MAX_SECONDS} s"
    except (OSError, ValueError) as error:
        yield f"{NO_VERDICT}{error}"
    except KeyboardInterrupt:
        yield f"{NO_VERDICT}its analysis was interrupted"
    else:
        lines = ended.stdout.splitlines()
        failed = (ended.stderr.splitlines() or [f"its analysis ended with code {ended.returncode}"])[-1]
        yield from lines if not ended.returncode else [f"{NO_VERDICT}{failed}"]


def _width() -> int:
    """Columns of the terminal, or enough for a file."""
    return shutil.get_terminal_size().columns if sys.stderr.isatty() else FILE_WIDTH


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
    if not process_notes.counts.get(Note.TRAINS) and (ended := _ended_at_start(process_notes)):
        return ended
    if not process_notes.counts.get(Note.TRAINS):
        return (
            "torch was imported, but no process group and no optimizer of torch.optim was made; if it trains, "
            + BY_HAND
        )
    return f"recording began, but nothing could be written to {_short(out)}; see the warnings above"


def _ended_at_start(process_notes: Notes) -> str:
    """Ranks of a launcher that ended by themselves before the first process group, and where the others stood; empty
    without.
    """
    first = failed_first(process_notes.started, process_notes.ends)
    if first is None:
        return ""
    rank, end = first
    how = f"was killed (signal {-end.exit_code})" if end.exit_code < 0 else f"exited with code {end.exit_code}"
    where = "in init_process_group" if rank.joins else "before it called init_process_group"
    waiting = sorted({each.rank for each in process_notes.started if each.joins and each.rank != rank.rank})
    others = f"; {numbers(waiting, 'rank')} waited in init_process_group" if waiting and not rank.joins else ""
    return (
        f"rank {rank.rank} {how} {where}, and no rank had a process group{others}. Read the output of rank {rank.rank}"
        + (", and the kernel's log for SIGKILL" if end.exit_code == -signal.SIGKILL else "")
    )


def _short(path: Path) -> str:
    """The path, relative to the current directory if that exists and it is below it."""
    with suppress(OSError, ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
