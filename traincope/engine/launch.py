"""Start a training on this machine through torchrun, and say what became of it."""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from traincope.errors import ConfigError, DataError, TrainingError
from traincope.store.launcher import LauncherNote, read_notes

WORKER = "traincope.cli.worker"
TORCHRUN = "traincope.cli.torchrun"
"""torchrun, which also writes down who failed."""

_SIGNALS = {known.value: known.name for known in signal.Signals}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One torchrun on this machine."""

    ranks: int
    arguments: tuple[str, ...] = ()
    """Command line of every worker."""
    max_restarts: int = 0
    """Times torchrun starts all ranks anew after one has failed."""
    module: str = WORKER
    notes: Path | None = None
    """Where it is written down how ranks failed, in every attempt (`store.launcher`)."""


def launch(job: Launch) -> None:
    """Run to the end. Raises TrainingError naming the rank that failed and how.

    A worker that refuses its configuration or its data has said so on stderr; that becomes the
    same ConfigError or DataError here, so that the exit code tells.
    """
    with tempfile.TemporaryDirectory(prefix="traincope-") as directory:
        notes = job.notes or Path(directory) / "launcher.jsonl"
        command = [sys.executable, "-m", TORCHRUN, str(notes), *torchrun_arguments(job)]
        code = subprocess.run(command, env=_environment(), check=False).returncode
        failures = [note for note in read_notes(notes) if note.first]
    if code != 0 and failures:
        raise _failure(failures[-1])
    if code != 0:
        raise TrainingError(f"torchrun {_ending(code)} before a rank had failed; its own message is above")


def torchrun_arguments(job: Launch) -> list[str]:
    """What `torchrun` would be given on a command line."""
    return [
        "--standalone",
        f"--nproc-per-node={job.ranks}",
        f"--max-restarts={job.max_restarts}",
        "--module",
        job.module,
        *job.arguments,
    ]


def _environment() -> dict[str, str]:
    """One thread a rank unless told otherwise: ranks share the cores, and torchrun's own choice warns."""
    return {"OMP_NUM_THREADS": "1", **os.environ}


def _failure(last: LauncherNote) -> Exception:
    if last.rank is None:
        return TrainingError(f"the training was stopped by {_SIGNALS.get(-last.exit_code, 'a signal')}")
    for kind in (ConfigError, DataError):
        if last.exit_code == kind.exit_code:
            return kind("the training was refused; the reason is above")
    hint = "unless that was by hand, see dmesg for the out-of-memory killer"
    advice = hint if last.exit_code == -signal.SIGKILL else "its last words are above"
    return TrainingError(f"rank {last.rank} {_ending(last.exit_code)}; {advice}")


def _ending(exit_code: int) -> str:
    if exit_code < 0:
        return f"was killed by {_SIGNALS.get(-exit_code, f'signal {-exit_code}')}"
    return f"exited with code {exit_code}"
