"""Variables of a rank that srun itself starts, one task per rank, without torchrun."""

import re
from collections.abc import Mapping

PORTS = range(20_000, 30_000)
"""Ports that a job chooses by its number, below those that Linux gives to outgoing connections."""
FIRST_HOST = re.compile(r"(?P<head>[^,\[]+)(?:\[(?P<numbers>[^\]]+)\](?P<tail>[^,]*))?")
"""The first host of a SLURM list: `a3`, or `a[3-5,9]` with a common beginning and end."""


def variables_of_task(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that torchrun would set for this task. Empty unless srun started several tasks, of which this is one.

    SLURM gives each task its number. Rank 0 runs on the step's first host. Its port follows from the numbers of the job
    and of the step, unless MASTER_PORT is set, so that all ranks know it and two jobs on a host rarely meet.
    """
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) < 2 or "SLURM_PROCID" not in environment:
        return {}
    job, step = (int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return {
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "MASTER_ADDR": environment.get("MASTER_ADDR") or first_host(environment["SLURM_STEP_NODELIST"]),
        "MASTER_PORT": environment.get("MASTER_PORT") or str(PORTS[(job * 17 + step) % len(PORTS)]),
    }


def first_host(names: str) -> str:
    """First host of a list in SLURM's notation: `a[03-05,9],b` gives `a03`."""
    match = FIRST_HOST.match(names)
    if match is None:
        raise ValueError(names)
    first = re.split("[-,]", match["numbers"])[0] if match["numbers"] else ""
    return f"{match['head']}{first}{match['tail'] or ''}"
