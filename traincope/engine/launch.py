"""Start a training on this machine through torchrun, and report how it ended."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from traincope.errors import CheckpointError, ConfigError, DataError, TrainingError, UsageError
from traincope.store.job.launcher import FIRST_ATTEMPT_VARIABLE, LauncherNote, read_notes

WORKER = "traincope.cli.launch.worker"
TORCHRUN = "traincope.cli.launch.torchrun_child"
"""torchrun that also records which rank failed."""
PARENT_VARIABLE = "TRAINCOPE_PARENT"
"""Environment variable with the id of the process that starts torchrun or a rank, which end with it."""
INTERRUPTED_SECONDS = 3
"""Wait for a torchrun that got Ctrl-C, before it is asked to end."""
ASKED_SECONDS = 10
"""Wait for a torchrun that was asked to end, before it is killed."""

_SIGNALS = {known.value: known.name for known in signal.Signals}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One torchrun on this machine."""

    ranks: int
    arguments: tuple[str, ...] = ()
    """Command line of each worker."""
    max_restarts: int = 0
    """Limit on restarts of all ranks after one has failed."""
    module: str = WORKER
    notes: Path | None = None
    """File for the failures of ranks, in all attempts (`store.launcher`)."""
    first_attempt: int = 0
    """Number of the first attempt: how many earlier launches have left in the run directory."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables besides those of this process."""
    wait: Callable[["subprocess.Popen[bytes]"], int] = subprocess.Popen.wait
    """Waits for torchrun's end and returns its exit code. It may end torchrun itself."""


def launch(job: Launch) -> None:
    """Run the job to its end. Raises TrainingError that names the failed rank and the reason.

    A worker that refuses its configuration or data reports the reason on stderr and exits with a code. The same
    ConfigError or DataError is raised here, so that this process exits with the same code.
    """
    with tempfile.TemporaryDirectory(prefix="traincope-") as directory:
        notes = job.notes or Path(directory) / "launcher.jsonl"
        command = [sys.executable, "-m", TORCHRUN, str(notes), *torchrun_arguments(job)]
        code = _run(command, job)
        failures = [note for note in read_notes(notes) if note.first and note.attempt >= job.first_attempt]
    if code != 0 and failures:
        raise _failure(failures[-1])
    if code != 0:
        raise TrainingError(f"torchrun {_exit_reason(code)} before a rank failed; its own message is above")


def _run(command: Sequence[str], job: Launch) -> int:
    with _started(command, job) as torchrun:
        try:
            return job.wait(torchrun)
        except KeyboardInterrupt:
            _let_end(torchrun)
            raise
        finally:
            torchrun.kill()


def _started(command: Sequence[str], job: Launch) -> "subprocess.Popen[bytes]":
    """Start torchrun and its ranks with Ctrl-C ignored: each would print a traceback. `torchrun_child` answers it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.Popen(command, env=_environment(job))
    finally:
        signal.signal(signal.SIGINT, before)


def _let_end(torchrun: "subprocess.Popen[bytes]") -> None:
    """Let torchrun end its ranks and write down why. It answers SIGINT once, and none before it has ranks."""
    for number, seconds in ((signal.SIGINT, INTERRUPTED_SECONDS), (signal.SIGTERM, ASKED_SECONDS)):
        torchrun.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            torchrun.wait(seconds)
            return


def torchrun_arguments(job: Launch) -> list[str]:
    """Command-line arguments of `torchrun` for this job."""
    return [
        "--standalone",
        f"--nproc-per-node={job.ranks}",
        f"--max-restarts={job.max_restarts}",
        "--module",
        job.module,
        *job.arguments,
    ]


def _environment(job: Launch) -> dict[str, str]:
    """Environment with one thread per rank unless OMP_NUM_THREADS is set.

    Ranks share the cores, and torchrun's own choice prints a warning.
    """
    of_launch = {FIRST_ATTEMPT_VARIABLE: str(job.first_attempt), PARENT_VARIABLE: str(os.getpid())}
    return {"OMP_NUM_THREADS": "1", **os.environ, **of_launch, **job.environment}


def _failure(last: LauncherNote) -> Exception:
    if last.rank is None:
        return TrainingError(f"the training was stopped by {_SIGNALS.get(-last.exit_code, 'a signal')}")
    for kind in (UsageError, ConfigError, DataError):
        if last.exit_code == kind.exit_code:
            return kind("the training was refused; the reason is above")
    if last.exit_code == CheckpointError.exit_code:
        return CheckpointError("the training ended because of its checkpoints; the reason is above")
    hint = "unless you stopped it yourself, see dmesg for the out-of-memory killer"
    advice = hint if last.exit_code == -signal.SIGKILL else "its last output is above"
    return TrainingError(f"rank {last.rank} {_exit_reason(last.exit_code)}; {advice}")


def _exit_reason(exit_code: int) -> str:
    if exit_code < 0:
        return f"was killed by {_SIGNALS.get(-exit_code, f'signal {-exit_code}')}"
    return f"exited with code {exit_code}"
