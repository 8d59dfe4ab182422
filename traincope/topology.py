"""Where a rank stands: its host, its place on the mesh, the groups it talks to."""

from dataclasses import dataclass, field

KNOWN_AXES = ("pp", "dp_replicate", "dp", "fsdp", "efsdp", "dp_cp", "cp", "tp", "ep")
"""Mesh axes in the order tables show them; axis names are open, others follow alphabetically."""

PIPELINE_AXIS = "pp"


def axis_order(axis: str) -> tuple[int, str]:
    """Sort key that puts known axes first, in their usual order."""
    return (KNOWN_AXES.index(axis) if axis in KNOWN_AXES else len(KNOWN_AXES), axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A process group as one rank knows it."""

    number: int
    """Its number in this rank's records (not comparable between ranks)."""
    key: str
    """The name all members share; with `sequence` it identifies a collective across ranks."""
    axis: str
    """Mesh axis, or `world`, or `group:<ranks>` where nothing told."""
    rule: str
    """Which rule found the axis: told, mesh, description, framework, wrapper, or none."""
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine; `boot_id` tells whether two ranks share a monotonic clock."""

    name: str
    boot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCoord:
    """A rank and its coordinate on every mesh axis, e.g. {"pp": 0, "fsdp": 1}."""

    rank: int
    coords: dict[str, int] = field(default_factory=dict)
