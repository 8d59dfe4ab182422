"""Launch a training and draw its progress, for `train`, `demo` and `drift`."""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from traincope.cli.launch.hang_exit import REPORT, hang_exit
from traincope.cli.launch.injecting import injecting_environment
from traincope.errors import HangError, MissingDependencyError, TrainingError, UsageError
from traincope.store.job.launcher import next_attempt, notes_path
from traincope.store.layout import RUN_FILE

if TYPE_CHECKING:
    from traincope.engine.config import Config

POLL_SECONDS = 0.2


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add `--set`, whose values are `overrides`."""
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="override one value of the file (repeatable)",
    )


def override_words(overrides: Sequence[str]) -> tuple[str, ...]:
    """The same overrides on a worker's command line."""
    return tuple(word for override in overrides for word in ("--set", override))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training to launch on this machine."""

    config: Path
    out: Path
    overrides: tuple[str, ...] = ()
    max_restarts: int = 0
    fault: str | None = None
    """The fault to inject."""
    resume: bool = False
    """Continue from the newest checkpoint."""
    on_hang: str = REPORT
    """Reaction to a hang of the training (`hang_exit`)."""


def check_out(out: Path, *, resume: bool = False) -> None:
    """Raise UsageError if `out` is a file, or a directory with files that a new training must not mix with."""
    if not resume and out.is_dir() and any(out.iterdir()):
        from traincope.engine.checkpoint.places.directory import IN_RUN

        remedy = "continue it with --resume, or give" if (out / IN_RUN).is_dir() else "remove it, or give"
        raise UsageError(f"{out} already exists and is not empty; {remedy} another directory with --out")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is not a directory; give another with --out")


def train(job: Job, *, console: Console) -> None:
    """Launch the training through torchrun and draw a progress bar until it ends.

    Raises UsageError, ConfigError, DataError or CheckpointError, if possible before any process starts, TrainingError
    if a rank failed, HangError if the training hung and was ended, and KeyboardInterrupt with a message after Ctrl-C.
    """
    _check_writable(job.out)
    ending = hang_exit(job.on_hang, runs=lambda: [job.out], environment=os.environ)
    require_torch()
    from traincope.engine.config.load import load_config
    from traincope.engine.corpus import check_corpus
    from traincope.engine.launch import Launch, launch

    config = load_config(job.config, overrides=job.overrides)
    check_corpus(config.data, sequence=config.model.sequence)
    _check_checkpoints(config, job)
    ranks = config.parallel.world_size
    with TemporaryDirectory(prefix="traincope-progress-") as directory:
        progress_file = Path(directory) / "progress.jsonl"
        arguments = (str(job.config), "--out", str(job.out), "--progress", str(progress_file))
        resume = ("--resume",) if job.resume else ()
        launched = Launch(
            ranks=ranks,
            arguments=arguments + resume + override_words(job.overrides),
            max_restarts=job.max_restarts,
            notes=notes_path(job.out),
            first_attempt=next_attempt(job.out),
            environment=injecting_environment(job.fault, out=job.out),
            wait=subprocess.Popen.wait if ending is None else ending.wait,
        )
        try:
            with progress_bar(progress_file, steps=config.train.steps, console=console):
                launch(launched)
        except KeyboardInterrupt as stopped:
            raise KeyboardInterrupt(stopped_in(job.out)) from stopped
        except TrainingError as error:
            if ending is None or ending.notice is None:
                raise
            raise HangError(f"ended the training (--on-hang=exit): {ending.notice.sentence}") from error


def _check_writable(out: Path) -> None:
    """Raise UsageError if nothing can be written to `out`, or where it would be made."""
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    try:
        TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise UsageError(f"cannot write to {nearest}: {error.strerror}; give another directory with --out") from error


def _check_checkpoints(config: "Config", job: Job) -> None:
    """Check without a process that the training may begin, or resume, with the checkpoints that exist."""
    from traincope.engine.checkpoint.identity import identity
    from traincope.engine.checkpoint.places.directory import checkpoint_directory
    from traincope.engine.checkpoint.places.tiers import check_resumable, check_unused, open_bucket
    from traincope.engine.corpus import read_corpus

    if config.checkpoint is None:
        if job.resume:
            raise UsageError(f"--resume needs checkpoints, but {job.config} has no table [checkpoint]; add it")
        return
    directory, bucket = checkpoint_directory(config.checkpoint, run=job.out), open_bucket(config.checkpoint)
    if job.resume:
        check_resumable(directory, bucket, lambda: identity(config, read_corpus(config.data)))
    else:
        check_unused(directory, bucket)


def stopped_in(out: Path) -> str:
    """Say that the user stopped the training, and where its record is, if there is one."""
    return f"stopped by you, with Ctrl-C{f'; recorded in {out}' if (out / RUN_FILE).is_file() else ''}"


def program() -> str:
    """The command line's name if the shell finds it, otherwise that of its module or script."""
    if shutil.which("traincope"):
        return "traincope"
    script = Path(sys.argv[0])
    return "python -m traincope" if script.name == "__main__.py" else str(script)


def require_torch() -> None:
    """Raise MissingDependencyError if the training extra is not installed."""
    for package in ("torch", "cattrs"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(f"training needs {package}: pip install 'traincope[train]'")


@contextmanager
def progress_bar(path: Path, *, steps: int, console: Console) -> Iterator[None]:
    """Draw what rank 0 appends to `path` until the block ends."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    stopped = threading.Event()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting ranks", total=steps, loss="")
        thread = threading.Thread(target=_follow, args=(path, progress, task, stopped), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()


def _follow(path: Path, progress: Progress, task: TaskID, stopped: threading.Event) -> None:
    shown = 0
    while True:
        last_look = stopped.wait(POLL_SECONDS)
        lines = path.read_text().splitlines() if path.exists() else []
        for values in _complete(lines[shown:]):
            shown += 1
            if values.get("loss") is not None:
                progress.update(task, loss=f"loss {values['loss']:.3f}")
            if "step" in values and "held_out_loss" not in values:
                progress.update(task, completed=values["step"], description="training")
        if last_look:
            return


def _complete(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The complete lines. The last line may still be incomplete."""
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            return
