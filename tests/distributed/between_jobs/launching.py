"""Launches of replica groups: one torchrun each, bare or under `traincope run`."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.ports import free_port

BIN = Path(sys.executable).parent
TIMEOUT_SECONDS = 300


def launch(
    program: Path, folder: Path, settings: Sequence[Mapping[str, str]], *, recorded: bool, nproc: int = 2
) -> list[Path]:
    """Launch one replica group per entry of `settings`, its environment variables, and return its run directories."""
    port = str(free_port())
    jobs, runs = [], []
    for replica, more in enumerate(settings):
        own = folder / f"replica-{replica}"
        own.mkdir(parents=True)
        command = [str(BIN / "torchrun"), f"--nproc-per-node={nproc}", "--rdzv-backend=c10d"]
        command += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", str(program)]
        if recorded:
            command = [str(BIN / "traincope"), "run", "--out", str(own / "run"), "--", *command]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "REPLICA": str(replica),
            "REPLICAS": str(len(settings)),
            "REPLICA_PORT": port,
            "LOSS_OUT": str(own / "loss"),
            "TRAINCOPE_WORKFLOW": "replicas",
            "TRAINCOPE_ROLE": f"replica-{replica}",
            **more,
        }
        with (own / "log").open("wb") as log:
            jobs.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        runs.append(own / "run")
    for job, run in zip(jobs, runs, strict=True):
        assert job.wait(TIMEOUT_SECONDS) == 0, (run.parent / "log").read_text()[-2_000:]
    return runs


def losses(folder: Path) -> dict[str, str]:
    """File of a rank -> its losses, of all replica groups."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.glob("replica-*/loss.*"))}
