"""A SLURM of one node: its controller and its daemon, on ports of their own."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.debian import PATH, installed
from tests.ports import free_port

PROGRAMS = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
"""Program -> Debian's package."""
CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 Gres=gpu:2 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""
GRES = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"
"""Two GPUs that SLURM counts, and no training uses."""
SECONDS = 60


@contextmanager
def slurm(folder: Path, *, tracking: str = "linuxproc") -> Iterator[dict[str, str]]:
    """Yield the variables of its clients. Skips where it cannot run.

    `tracking`: `pgid` ends a step with its tasks. `linuxproc` waits for orphans, for ever if nothing reaps them.
    """
    if os.getuid():
        pytest.skip("only root can start SLURM's daemons")
    if not installed(PROGRAMS):
        pytest.skip(f"not installed: apt-get install {' '.join(PROGRAMS.values())}")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    ports, conf = {"controller": free_port(), "daemon": free_port()}, folder / "slurm.conf"
    conf.write_text(CONF.format(host=socket.gethostname(), folder=folder, tracking=tracking, **ports))
    (folder / "gres.conf").write_text(GRES)
    variables = {"SLURM_CONF": str(conf), "PATH": PATH}
    with ExitStack() as running, (folder / "log").open("w") as log:
        for program in ("slurmctld", "slurmd"):
            command = [shutil.which(program, path=PATH) or program, "-D", "-f", str(conf)]
            process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=log)
            running.callback(process.wait)
            running.callback(process.terminate)
        wait_until_idle(variables, log=folder / "log")
        yield {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}


def wait_until_idle(variables: dict[str, str], *, log: Path) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        shown = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        if shown.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    pytest.fail(f"the node of SLURM did not come up:\n{log.read_text()}")
