"""The place of a rank in the job: its host, its coordinates on the mesh, its process groups."""

from dataclasses import dataclass, field
from enum import StrEnum

KNOWN_AXES = ("pp", "dp_replicate", "dp", "fsdp", "efsdp", "dp_cp", "cp", "tp", "ep")
"""Known mesh axes in the order of tables. Other axis names are allowed; they follow in alphabetical order."""

PIPELINE_AXIS = "pp"
REPLICA_AXES = ("dp", "dp_replicate")
"""Axes whose ranks hold the same parameters."""
SHARD_AXES = ("fsdp",)
"""Axes whose ranks share the parameters of a replica."""
BETWEEN_JOBS_AXIS = "replica"
"""Axis of groups with members in other jobs: replica groups (torchft), periodic averaging (DiLoCo)."""
BETWEEN_JOBS_RULE = "jobs"
"""Rule of such a group's axis."""


def axis_order(axis: str) -> tuple[int, str]:
    """Sort key that puts known axes first, in their usual order."""
    return (KNOWN_AXES.index(axis) if axis in KNOWN_AXES else len(KNOWN_AXES), axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group as one rank knows it."""

    number: int
    """The group's number in this rank's records. Numbers are not comparable between ranks."""
    key: str
    """The name that all members share. With `sequence` it identifies a collective across ranks."""
    axis: str
    """Mesh axis, or `world`, or `group:<ranks>` if no rule gave an axis."""
    rule: str
    """The rule that gave the axis: told (by `run(axes=...)`), mesh, description, framework, jobs, wrapper, or none."""
    ranks: tuple[int, ...]
    """Global ranks of its members. Empty: torch does not know them."""
    matched: bool = True
    """False where a trace does not show that all members count its collectives alike. Its key is the rank's own."""
    between_jobs: bool = False
    """Other members are in other jobs. Its key is the rank's own."""
    member: int | None = None
    """The rank's number in a group that torch does not know; None if unknown."""
    size: int = 0
    """Number of that group's members; 0 if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine. Two ranks with the same `boot_id` share a monotonic clock."""

    name: str
    boot_id: str


class Scheduler(StrEnum):
    """Software that starts jobs on the hosts of a cluster."""

    SLURM = "slurm"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A host under the name by which its scheduler knows it. It may differ from the host's own name."""

    scheduler: Scheduler
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCoord:
    """A rank and its coordinate on every mesh axis, e.g. {"pp": 0, "fsdp": 1}."""

    rank: int
    coords: dict[str, int] = field(default_factory=dict)
