"""`traincope run -- COMMAND`: record a training whose code is not touched."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from traincope import startup
from traincope.cli.child import Ended, run_child
from traincope.cli.outcome import say
from traincope.cli.training import check_out
from traincope.errors import UsageError
from traincope.record.identity import DEFAULT_ROOT, identify, this_host, told_run_id
from traincope.record.options import OUT_VARIABLE
from traincope.startup.deaths import deaths, end_of_all, has_silent_rank
from traincope.startup.notes import NOTES_VARIABLE, ChildEnd, Notes, read_notes
from traincope.store.launcher import LauncherNote, append_notes, notes_of
from traincope.store.launcher import read_notes as launcher_notes
from traincope.store.layout import PROVISIONAL, RUN_FILE

INTERPRETER = Path(startup.__file__).parent / "interpreter"
"""Goes first on PYTHONPATH; holds our sitecustomize, and nothing that could hide a module of theirs."""

SCRIPTS = (".py", ".sh")


class Run:
    name = "run"
    help = "run any training command and record it, without a change to its code"
    example = "traincope run --out traincope_runs/mine -- torchrun --nproc-per-node 4 train.py"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--out", type=Path, metavar="DIR", help=f"run directory (default: {DEFAULT_ROOT}/NAME-TIME)"
        )
        parser.add_argument(
            "words",
            nargs=argparse.REMAINDER,
            metavar="-- COMMAND ...",
            help="what to run, as you would type it; every Python that it starts and that trains records itself",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        command = _command(arguments.words)
        out = _directory(arguments.out, command=command)
        before, began_wall_ns = recorded(out), time.time_ns()
        with tempfile.NamedTemporaryFile(prefix="traincope-run-") as notes:
            ended = run_child(command, environment=_environment(out, notes=Path(notes.name)))
            seen = read_notes(Path(notes.name))
        new = recorded(out) - before
        for run in [*([out] if new else []), *_own(seen)]:
            _note_deaths(run, ended=ended, seen=seen, since_wall_ns=began_wall_ns)
        if not identify(os.environ).rank:
            say(out, new=new, seen=seen, file=sys.stderr)
        return ended.shell_code


def recorded(out: Path) -> frozenset[Path]:
    """What processes have recorded there: a directory each."""
    return frozenset([*out.glob("attempt-*/rank-*"), *out.glob(f"{PROVISIONAL}*")])


def _own(seen: Notes) -> Iterator[Path]:
    """Runs that scripts began themselves, as far as they are known by a path."""
    return (path for place in seen.own_runs if place and (path := Path(place)).is_dir())


def _note_deaths(run: Path, *, ended: Ended, seen: Notes, since_wall_ns: int) -> None:
    """Write down how ranks ended that cannot tell themselves: the command may be one, or what launched them."""
    path = notes_of(run)
    known = {(note.attempt, note.rank) for note in launcher_notes(path)}
    notes = [
        note
        for note in _deaths(run, ended=ended, seen=seen, since_wall_ns=since_wall_ns)
        if (note.attempt, note.rank) not in known
    ]
    try:
        append_notes(path, notes)
    except OSError as error:
        print(f"traincope: how its ranks ended could not be written to {path}: {error.strerror}", file=sys.stderr)


def _deaths(run: Path, *, ended: Ended, seen: Notes, since_wall_ns: int) -> Iterator[LauncherNote]:
    """Also the command's own end, where it was told to stop, or a shell stood between that keeps the rank's code."""
    now = time.time_ns()
    own = ChildEnd(pid=ended.pid, exit_code=ended.exit_code, at_wall_ns=now, host=this_host())
    found = deaths(run, ends=(*seen.ends, own), since_wall_ns=since_wall_ns)
    yield from found
    if ended.told_to_stop is not None and ended.exit_code:
        yield end_of_all(run, exit_code=-ended.told_to_stop, at_wall_ns=now)
    elif ended.exit_code >= 0 and has_silent_rank(run, noted=found, since_wall_ns=since_wall_ns):
        yield end_of_all(run, exit_code=ended.exit_code, at_wall_ns=now)


def _command(words: Sequence[str]) -> list[str]:
    command = list(words[1:] if words[:1] == ["--"] else words)
    if not command:
        raise UsageError(f"no command; give one after --, e.g. {Run.example}")
    if command[0].startswith("-"):
        raise UsageError(f"it has no option {command[0]}; your command goes after --, e.g. {Run.example}")
    return command


def _directory(out: Path | None, *, command: Sequence[str]) -> Path:
    """Absolute, for the command may change its directory. Launchers on other nodes and restarts share a run."""
    chosen = out or (Path(os.environ[OUT_VARIABLE]) if os.environ.get(OUT_VARIABLE) else None)
    if chosen is None:
        return Path(DEFAULT_ROOT).absolute() / _name(command, os.environ)
    if not (chosen / RUN_FILE).is_file() and not recorded(chosen):
        check_out(chosen)
    return chosen.absolute()


def _name(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """As it was told; else the job's, where a launcher started us once a rank: all of them must find the same."""
    told = told_run_id(environment)
    if told is not None:
        return told
    identity = identify(environment)
    if identity.run_id is not None and identity.rank is not None and identity.world_size > 1:
        return identity.run_id
    script = next((word for word in command if word.endswith(SCRIPTS)), command[0])
    return f"{Path(script).stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def _environment(out: Path, *, notes: Path) -> dict[str, str]:
    theirs = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": f"{INTERPRETER}{os.pathsep}{theirs}" if theirs else str(INTERPRETER),
        OUT_VARIABLE: str(out),
        NOTES_VARIABLE: str(notes),
    }
