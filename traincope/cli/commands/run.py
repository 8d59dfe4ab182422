"""`traincope run -- COMMAND`: record a training without a change to its code."""

import argparse
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from traincope.cli.launch.child import Child, Ended, end_as, run_here
from traincope.cli.launch.hang_exit import HangExit, add_on_hang_argument, hang_exit
from traincope.cli.launch.injecting import add_fault_argument, fault_environment, python_path
from traincope.cli.launch.outcome import print_outcome, say
from traincope.cli.launch.training import check_out
from traincope.errors import CommandError, HangError, UsageError
from traincope.live.shipping.destinations import known_destinations
from traincope.record.instrumentation.guard import guard
from traincope.record.session.identity import declared_run_id, identify, this_host
from traincope.record.session.options import (
    BUDGET_VARIABLE,
    LEVEL_VARIABLE,
    OFF,
    OUT_VARIABLE,
    SHIP_VARIABLE,
    site_options,
)
from traincope.site_file import site_file
from traincope.startup.notes import ABOVE_VARIABLE, ChildEnd, Note, Notes, read_notes, write_note
from traincope.startup.rank_exits import end_of_all, failed_exits, has_silent_rank
from traincope.store.job.launcher import NOTES_VARIABLE, LauncherNote, append_notes, notes_path
from traincope.store.job.launcher import read_notes as launcher_notes
from traincope.store.layout import DEFAULT_ROOT, PROVISIONAL, RUN_FILE, attempt_directory, attempt_number
from traincope.store.lock import is_locked, job_name, lock_path
from traincope.store.places.names import new_run, reserve_run
from traincope.store.places.node_local import recorded_at
from traincope.store.places.ship_notes import is_shipped, ship_wait_seconds

POLL_SECONDS = 0.1
SCRIPTS = (".py", ".sh")
NO_NOTES = Path(os.devnull)
"""Instead of a file that cannot be made."""


class Run:
    name = "run"
    example = "traincope run --out traincope_runs/mine -- torchrun --nproc-per-node 4 train.py"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--out", type=Path, metavar="DIR", help=f"run directory (default: {DEFAULT_ROOT}/SCRIPT-DAY-TIME)"
        )
        parser.add_argument(
            "--budget",
            type=_budget,
            metavar="SHARE",
            help="the recorder's average share of a step (default: 0.005); detail beyond it, or beyond four times it "
            "with the native recorder, is recorded in a part of the steps; `none`: in every step",
        )
        parser.add_argument("--level", type=int, choices=range(4), help="how much is recorded (default: 1)")
        add_on_hang_argument(parser)
        add_fault_argument(parser)
        parser.add_argument(
            "words",
            nargs=argparse.REMAINDER,
            metavar="-- COMMAND ...",
            help="the command as you would type it; all Python processes of it that train record themselves",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        command = _command(arguments.words)
        with suppress(OSError):
            if arguments.out is not None:
                _check_out(arguments.out)
        hang_exit(arguments.on_hang, runs=list, environment=os.environ)
        recording = guard(_prepared)(arguments, command)
        if recording is None:
            run_here(command, environment=os.environ)
        try:
            child = Child(command, environment=recording.environment)
        except OSError:  # the system allows no other process, or no more open files
            recording.close()
            run_here(command, environment=recording.environment)
        except CommandError:
            recording.close()
            raise
        with child:
            ended = child.run(recording.ending)
            child.afterwards(lambda: guard(_conclude)(recording, ended))
            recording.close()
            if recording.ending is None or recording.ending.notice is None:
                return end_as(ended)
            return HangError.exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recording:
    """The recording of the command's processes."""

    out: Path
    notes: Path
    reserved: tuple[Path, ...]
    """Directories that were made for this command. They are removed if nothing is recorded."""
    own_notes: bool
    """The notes are of this command, not of a `traincope run` around it."""
    before: frozenset[Path]
    """Directories that processes had recorded in before."""
    began_wall_ns: int
    environment: Mapping[str, str]
    """Variables of the command."""
    ending: HangExit | None

    def close(self) -> None:
        with suppress(OSError):
            for directory in self.reserved:
                directory.rmdir()  # if it is empty
        if self.own_notes:
            with suppress(OSError):
                self.notes.unlink()


def _prepared(arguments: argparse.Namespace, command: Sequence[str]) -> _Recording | None:
    """Prepare the recording. None, with one line on standard error, if that is not possible."""
    try:
        out, reserved = _directory(arguments.out, command=command)
    except OSError as error:
        say(f"not recorded: {error.strerror} (the working directory); give an absolute --out")
        return None
    outer = _notes_of_outer_run(out)
    notes = outer or _new_notes()
    return _Recording(
        out=out,
        reserved=reserved,
        notes=notes,
        own_notes=outer is None and notes != NO_NOTES,
        before=recorded(out),
        began_wall_ns=time.time_ns(),
        environment=_environment(out, notes, arguments),
        ending=hang_exit(
            arguments.on_hang,
            runs=lambda: map(recorded_at, [out, *_own_runs(read_notes(notes))]),
            environment=os.environ,
        ),
    )


def _new_notes() -> Path:
    try:
        descriptor, name = tempfile.mkstemp(prefix="traincope-run-")
    except OSError:
        return NO_NOTES
    os.close(descriptor)
    return Path(name)


def _conclude(recording: _Recording, ended: Ended) -> None:
    """Write down how ranks ended, and print the outcome."""
    out, process_notes = recording.out, read_notes(recording.notes)
    for run in (out, *_own_runs(process_notes)):
        _await_shipping(run)
    new = recorded(out) - recording.before
    for run in [*([out] if new else []), *_own_runs(process_notes)]:
        _note_exits(run, ended=ended, process_notes=process_notes, since_wall_ns=recording.began_wall_ns)
    if new and str(out) != os.environ.get(OUT_VARIABLE):
        write_note(Note.OWN_RUN, out)  # for a `traincope run` around this one
    if _notes_of_outer_run(out) is None and not identify(os.environ).rank:
        print_outcome(out, new=new, process_notes=process_notes)
    if recording.ending is not None and recording.ending.notice is not None:
        say(f"ended the job (--on-hang=exit, exit code {HangError.exit_code})")


def _await_shipping(run: Path) -> None:
    """Wait for the last records of this node, for a while: a container ends with this command."""
    local = recorded_at(run)
    attempts = [number for path in local.glob("attempt-*") if (number := attempt_number(path)) is not None]
    if not attempts or (local == run and not known_destinations(run).has_any):
        return
    until = time.monotonic() + ship_wait_seconds(os.environ)
    attempt = max(attempts)
    while attempt_directory(local, attempt).is_dir() and not is_shipped(local, attempt=attempt, host=this_host()):
        if time.monotonic() > until or not is_locked(lock_path(job_name(local, attempt=attempt))):
            say(f"not all records were shipped; run `traincope ship {run}` on this host")
            return
        time.sleep(POLL_SECONDS)


def recorded(out: Path) -> frozenset[Path]:
    """The directories that processes have recorded in, one each."""
    return frozenset([*out.glob("attempt-*/rank-*"), *out.glob(f"{PROVISIONAL}*")])


def _notes_of_outer_run(out: Path) -> Path | None:
    """The notes of the `traincope run` around this one, if it records in the same directory: it prints the outcome."""
    notes = os.environ.get(NOTES_VARIABLE)
    return Path(notes) if notes and os.path.exists(notes) and str(out) == os.environ.get(OUT_VARIABLE) else None


def _own_runs(process_notes: Notes) -> Iterator[Path]:
    """Run directories of scripts that call `traincope.run()`, if their path is known."""
    return (path for place in process_notes.own_runs if place and (path := Path(place)).is_dir())


def _note_exits(run: Path, *, ended: Ended, process_notes: Notes, since_wall_ns: int) -> None:
    """Write down how ranks ended that could not do so: the command may be such a rank, or their launcher."""
    path = notes_path(run)
    known = {(note.attempt, note.rank) for note in launcher_notes(path)}
    notes = [
        note
        for note in _exits(run, ended=ended, process_notes=process_notes, since_wall_ns=since_wall_ns)
        if (note.attempt, note.rank) not in known
    ]
    try:
        append_notes(path, notes)
    except OSError as error:
        say(f"cannot write how the ranks ended to {path}: {error.strerror}")


def _exits(run: Path, *, ended: Ended, process_notes: Notes, since_wall_ns: int) -> Iterator[LauncherNote]:
    """Ends of ranks; and the command's end if a signal stopped it or a torchrun in it, or if a shell passed on a rank's
    exit code.
    """
    now = time.time_ns()
    command_end = ChildEnd(pid=ended.pid, exit_code=ended.exit_code, at_wall_ns=now, host=this_host())
    ends, started = (*process_notes.ends, command_end), process_notes.started
    exits = failed_exits(run, ends=ends, started=started, since_wall_ns=since_wall_ns)
    yield from exits
    if ended.stop_signal is not None and ended.exit_code:
        yield end_of_all(run, exit_code=-ended.stop_signal, at_wall_ns=now)
    elif process_notes.stops and ended.exit_code:
        yield end_of_all(run, exit_code=process_notes.stops[0].exit_code, at_wall_ns=process_notes.stops[0].at_wall_ns)
    elif ended.exit_code >= 0 and has_silent_rank(run, noted=exits, since_wall_ns=since_wall_ns):
        yield end_of_all(run, exit_code=ended.exit_code, at_wall_ns=now)


def _command(words: Sequence[str]) -> list[str]:
    command = list(words[1:] if words[:1] == ["--"] else words)
    if not command:
        raise UsageError(f"the command is missing; give it after --, e.g. {Run.example}")
    if command[0].startswith("-"):
        raise UsageError(f"unknown option {command[0]}; give your command after --, e.g. {Run.example}")
    return command


def _directory(out: Path | None, *, command: Sequence[str]) -> tuple[Path, tuple[Path, ...]]:
    """The absolute run directory, because the command may change its directory; and the directories made for it.

    Without a given one it has the job's name, so that all ranks of a job get the same, or a new name.
    """
    chosen = out or _out_of_environment()
    if chosen is not None:
        return chosen.absolute(), ()
    root = Path(DEFAULT_ROOT).absolute()
    run_id, identity = declared_run_id(os.environ), identify(os.environ)
    if run_id is None and identity.rank is not None and identity.world_size > 1:
        run_id = identity.run_id
    if run_id is not None:
        return root / run_id, ()
    script = next((word for word in command if word.endswith(SCRIPTS)), command[0])
    is_new = not root.exists()
    try:
        run = reserve_run(root, script, for_store=_is_shipped())
    except OSError:  # the recorder reports it, if the command trains
        return new_run(root, script), ()
    return run, (run, root) if is_new else (run,)


def _is_shipped() -> bool:
    """Return whether the recorder ships the run, if it can use the setting."""
    setting = os.environ.get(SHIP_VARIABLE) or site_options(site_file())[0].get("ship") or OFF[0]
    return setting.lower() not in OFF


def _out_of_environment() -> Path | None:
    """The directory that the variable gives; an unusable one is reported and ignored."""
    value = os.environ.get(OUT_VARIABLE)
    if not value:
        return None
    try:
        with suppress(OSError):
            _check_out(Path(value))
    except UsageError as error:
        say(f"{OUT_VARIABLE} is ignored: {error}")
        return None
    return Path(value)


def _check_out(out: Path) -> None:
    """Raise as `check_out`, unless a run is there: launchers on other nodes and restarts share one."""
    if not (out / RUN_FILE).is_file() and not recorded(out):
        check_out(out)


def _budget(text: str) -> str:
    """Check a budget: `none`, or a share of the step."""
    try:
        is_valid = text.lower() == "none" or 0 <= float(text) < math.inf
    except ValueError:
        is_valid = False
    if not is_valid:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a share of the step, e.g. 0.005, nor none")
    return text


def _environment(out: Path, notes: Path, arguments: argparse.Namespace) -> dict[str, str]:
    is_outer = str(out) == os.environ.get(OUT_VARIABLE)  # a rank of that run is still above its processes
    settings = {BUDGET_VARIABLE: arguments.budget, LEVEL_VARIABLE: arguments.level}
    return {
        **{name: value for name, value in os.environ.items() if name != ABOVE_VARIABLE or is_outer},
        **{name: str(value) for name, value in settings.items() if value is not None},
        **fault_environment(arguments.fault, out=out),
        "PYTHONPATH": python_path(os.environ),
        OUT_VARIABLE: str(out),
        NOTES_VARIABLE: str(notes),
    }
