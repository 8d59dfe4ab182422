"""The identity of this process: the run's id, its rank, and the attempt of the job."""

import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from traincope.store.job.launcher import FIRST_ATTEMPT_VARIABLE
from traincope.topology import ClusterNode, Host, Scheduler

logger = logging.getLogger(__name__)

RUN_ID_VARIABLE = "TRAINCOPE_RUN_ID"
RUN_ID = re.compile(r"\w[\w.+:@=-]{0,127}", re.ASCII)
"""Allowed run ids. A directory gets this name."""
LOCAL = "local-"
UNREADABLE = re.compile(rf"{LOCAL}\d+-\d+$|[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}$")
"""Ids of launches that are not used as names: ours of an unnamed launch, and torchrun's random ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity from the environment. A process group, once it exists, is more reliable."""

    rank: int | None
    """None if neither torchrun nor SLURM started this process."""
    world_size: int
    run_id: str | None
    """None if nothing names the job."""
    name: str | None = None
    """The run's name, if the caller, a variable or a launcher gives one. None: the run gets a readable one."""
    is_declared: bool = False
    """The caller or the variable gives it: it has precedence over the name of the directory."""
    restarts: int
    """Number of restarts of the job by the launcher, and of attempts of earlier launches in the same run directory.

    Launchers of several hosts may count differently, e.g. one that joined later.
    """
    store_restarts: int = 0
    """Restarts that the launcher's store has outlived, the same on all ranks. 0: each attempt has a new store."""


def identify(environment: Mapping[str, str], *, run_id: str | None = None) -> Identity:
    """Identify this process from an existing process group; without one, from the variables of torchrun or SLURM.

    `run_id`: the caller's. A process that a SLURM task starts itself inherits SLURM's variables.
    """
    rank = _integer(environment, "RANK", "SLURM_PROCID")
    world_size = _integer(environment, "WORLD_SIZE", "SLURM_NTASKS")
    group_rank = process_group_rank()
    if group_rank is not None:
        rank, world_size = group_rank
    restarts = _integer(environment, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT") or 0
    declared = declared_run_id(environment, run_id=run_id)
    launch_id = declared or _run_id(environment)
    return Identity(
        rank=rank,
        world_size=world_size or 1,
        run_id=launch_id,
        name=declared or (None if launch_id is None or UNREADABLE.match(launch_id) else launch_id),
        is_declared=declared is not None,
        restarts=restarts + (_integer(environment, FIRST_ATTEMPT_VARIABLE) or 0),
        store_restarts=restarts if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0,
    )


def process_group_rank() -> tuple[int, int] | None:
    """Return (rank, world size) of the default process group, or None if it does not exist (yet)."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def declared_run_id(environment: Mapping[str, str], *, run_id: str | None = None) -> str | None:
    """Return the run's id from the caller, or from $TRAINCOPE_RUN_ID. None without an id that a directory may have."""
    declared = environment.get(RUN_ID_VARIABLE) or None if run_id is None else run_id
    if declared is None or (isinstance(declared, str) and RUN_ID.fullmatch(declared)):
        return declared
    logger.warning("%r is not a run id (at most 128 letters, digits and _.+:@=-, no sign first): ignored", declared)
    return None


def local_rank(environment: Mapping[str, str]) -> int | None:
    """Return the rank's number on its host, from the variables of torchrun or SLURM; None if nothing gives it."""
    return _integer(environment, "LOCAL_RANK", "SLURM_LOCALID")


def this_host() -> Host:
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return Host(name=os.uname().nodename, boot_id=boot_id.read_text().strip() if boot_id.exists() else "")


def this_node(environment: Mapping[str, str]) -> ClusterNode | None:
    """The host under the name by which SLURM or Kubernetes knows it.

    A pod sees the node's name only if its manifest puts `spec.nodeName` into $NODE_NAME.
    """
    if environment.get("SLURMD_NODENAME"):
        return ClusterNode(scheduler=Scheduler.SLURM, name=environment["SLURMD_NODENAME"])
    if environment.get("NODE_NAME") and "KUBERNETES_SERVICE_HOST" in environment:
        return ClusterNode(scheduler=Scheduler.KUBERNETES, name=environment["NODE_NAME"])
    return None


def _run_id(environment: Mapping[str, str]) -> str | None:
    job = environment.get("SLURM_JOB_ID")
    if job:
        return f"slurm-{job}"
    elastic = environment.get("TORCHELASTIC_RUN_ID", "none")
    if elastic != "none":
        return elastic
    if "MASTER_PORT" in environment and "RANK" in environment:
        return f"{LOCAL}{os.getppid()}-{environment['MASTER_PORT']}"
    return None


def _integer(environment: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        value = environment.get(name, "")
        if value.isdecimal():
            return int(value)
    return None
