"""Who we are: the run's id, this process's rank, which attempt of the job this is."""

import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from traincope.topology import Host

logger = logging.getLogger(__name__)

DEFAULT_ROOT = "traincope_runs"
RUN_ID_VARIABLE = "TRAINCOPE_RUN_ID"
RUN_ID = re.compile(r"\w[\w.+:@=-]{0,127}", re.ASCII)
"""What a run may be told to be called, for a directory is called so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the environment says; a process group, once there is one, knows better."""

    rank: int | None
    """None: neither torchrun nor SLURM started this process."""
    world_size: int
    run_id: str | None
    """None: nothing names the job."""
    restarts: int
    """How often the launcher has started the job anew."""


def identify(environment: Mapping[str, str], *, run_id: str | None = None) -> Identity:
    """From a process group that already exists, else from what torchrun or SLURM set; `run_id`: as it was told.

    SLURM's variables are inherited by processes that a SLURM task starts itself.
    """
    rank = _integer(environment, "RANK", "SLURM_PROCID")
    world_size = _integer(environment, "WORLD_SIZE", "SLURM_NTASKS")
    grouped = process_group_rank()
    if grouped is not None:
        rank, world_size = grouped
    return Identity(
        rank=rank,
        world_size=world_size or 1,
        run_id=told_run_id(environment, run_id=run_id) or _run_id(environment),
        restarts=_integer(environment, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT") or 0,
    )


def process_group_rank() -> tuple[int, int] | None:
    """(rank, world size) of the default process group, or None where there is none (yet)."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def told_run_id(environment: Mapping[str, str], *, run_id: str | None = None) -> str | None:
    """The run's id by the caller, else by $TRAINCOPE_RUN_ID; None where none is told that a directory may have."""
    told = environment.get(RUN_ID_VARIABLE) or None if run_id is None else run_id
    if told is None or (isinstance(told, str) and RUN_ID.fullmatch(told)):
        return told
    logger.warning("%r is no run id (up to 128 letters, digits and _.+:@=-, no sign first): it is left out", told)
    return None


def this_host() -> Host:
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return Host(name=os.uname().nodename, boot_id=boot_id.read_text().strip() if boot_id.exists() else "")


def _run_id(environment: Mapping[str, str]) -> str | None:
    job = environment.get("SLURM_JOB_ID")
    if job:
        return f"slurm-{job}"
    elastic = environment.get("TORCHELASTIC_RUN_ID", "none")
    if elastic != "none":
        return elastic
    if "MASTER_PORT" in environment and "RANK" in environment:
        return f"local-{os.getppid()}-{environment['MASTER_PORT']}"
    return None


def _integer(environment: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        value = environment.get(name, "")
        if value.isdecimal():
            return int(value)
    return None
