"""Start a training on this machine through torchrun, and say what became of it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from traincope.errors import ConfigError, DataError, TrainingError

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


def launch(job: Launch) -> None:
    """Run to the end. Raises TrainingError naming the rank that failed and how.

    A worker that refuses its configuration or its data has said so on stderr; that becomes the
    same ConfigError or DataError here, so that the exit code tells.
    """
    with tempfile.TemporaryDirectory(prefix="traincope-") as directory:
        note = Path(directory) / "failure.json"
        command = [sys.executable, "-m", TORCHRUN, str(note), *torchrun_arguments(job)]
        code = subprocess.run(command, env=_environment(), check=False).returncode
        failure = json.loads(note.read_text()) if note.exists() else None
    if failure is not None:
        raise _failure(rank=int(failure["rank"]), exit_code=int(failure["exit_code"]))
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


def _failure(*, rank: int, exit_code: int) -> Exception:
    for kind in (ConfigError, DataError):
        if exit_code == kind.exit_code:
            return kind("the training was refused; the reason is above")
    hint = "unless that was by hand, see dmesg for the out-of-memory killer"
    advice = hint if exit_code == -signal.SIGKILL else "its last words are above"
    return TrainingError(f"rank {rank} {_ending(exit_code)}; {advice}")


def _ending(exit_code: int) -> str:
    if exit_code < 0:
        return f"was killed by {_SIGNALS.get(-exit_code, f'signal {-exit_code}')}"
    return f"exited with code {exit_code}"
