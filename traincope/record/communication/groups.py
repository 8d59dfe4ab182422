"""Process groups: number, name shared by the members, and mesh axis with the rule that gave it."""

import re
import sys
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from traincope.record.communication.frameworks import known_axis
from traincope.record.communication.meshes import Meshes
from traincope.record.instrumentation.asynchronous import is_asynchronous
from traincope.record.instrumentation.torch_private import is_plugin
from traincope.record.session.recorder import Recorder
from traincope.topology import BETWEEN_JOBS_AXIS, BETWEEN_JOBS_RULE

NO_RULE = "none"
WRAPPERS = (
    ("torch.distributed.fsdp", "fsdp"),
    ("torch.nn.parallel.distributed", "dp"),
    ("torch.distributed.pipelining", "pp"),
    ("torch.distributed.tensor.parallel", "tp"),
    ("deepspeed.runtime.zero", "dp"),  # ZeRO-3 uses the world's own group, the other stages a copy
)
"""Module whose code calls the collective -> the axis of its collectives."""

UNNAMED = re.compile(r"mesh_dim_\d+")
"""torch's description of a group on a DeviceMesh without names."""


NO_DESCRIPTION = re.compile(r"|undefined|default(_pg)?(:.*)?|mesh_default|.*:split:\d+")
"""torch's descriptions of groups to which the training gave none."""
MAX_WRAPPER_LOOKUPS = 16
"""Number of later lookups of a group without an axis, for a wrapper among its callers."""


MAX_TAGS = 16_384
"""Maximum number of point-to-point counts per group. A training whose tags never repeat keeps the latest counts."""


@dataclass(slots=True)
class KnownGroup:
    """A group that this process has used, with the counts that identify its collectives."""

    number: int
    key: str
    """The group's name, common to its members on all ranks."""
    reference: weakref.ref[Any]
    axis: str
    rule: str
    ranks: tuple[int, ...]
    """Global ranks, by rank in the group."""
    attempts_left: int = 0
    window: int = 0
    """First step of the window in which the counts began."""
    count: int = 0
    """Number of collectives that this process issued on the group in that window."""
    reducer: bool = False
    """True if DDP's reducer waits for its collectives, inside C++."""
    point_to_point: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """(operation, peer, tag) -> number of operations."""

    def begin_window(self, window: int) -> None:
        """Count from 0 again, as all members do at the first collective of a window."""
        self.window, self.count = window, 0
        self.point_to_point.clear()

    def global_rank(self, peer: int) -> int:
        """Return the global rank of a peer, which is given by its rank in the group."""
        return self.ranks[peer] if 0 <= peer < len(self.ranks) else peer

    def next_sequence(self, operation: str, peer: int, tag: int) -> int:
        """Return the number of the next point-to-point operation with that peer and tag."""
        key = (operation, peer, tag)
        sequence = self.point_to_point.get(key, 0)
        if not sequence and len(self.point_to_point) >= MAX_TAGS:
            del self.point_to_point[next(iter(self.point_to_point))]
        self.point_to_point[key] = sequence + 1
        return sequence


class Groups:
    """All groups that this process has used. No group is kept alive by this."""

    def __init__(self, recorder: Recorder, meshes: Meshes) -> None:
        self._recorder = recorder
        self._meshes = meshes
        self.known: dict[int, KnownGroup] = {}
        """Groups by identity. An identity may be reused, so check the reference."""
        self._num_by_name: dict[str, int] = {}
        """Name -> number of groups of that name so far."""

    def find(self, group: Any) -> KnownGroup:
        known = self.known.get(id(group))
        if known is None or known.reference() is not group:
            return self._add(group)
        if known.attempts_left:
            known.attempts_left -= 1
            wrapper = calling_wrapper()
            if wrapper:
                return self.claim(group, wrapper)
        return known

    def claim(self, group: Any, axis: str) -> KnownGroup:
        """Assign the axis that a wrapper uses the group for. A mesh that names the group has precedence."""
        known = self.known.get(id(group))
        if known is None or known.reference() is not group:
            return self._add(group, wrapper=axis)
        if known.rule != NO_RULE:
            return known
        claimed = self._add(group, wrapper=axis)
        claimed.window, claimed.count, claimed.point_to_point = known.window, known.count, known.point_to_point
        claimed.reducer = known.reducer
        return claimed

    def _add(self, group: Any, *, wrapper: str | None = None) -> KnownGroup:
        ranks = _ranks_of(group)
        place = None if ranks else _place_in(group)
        between_jobs = _spans_jobs(group, ranks, place, world_size=self._recorder.world_size)
        axis, rule = self._axis(group, ranks, wrapper or calling_wrapper(), between_jobs=between_jobs)
        key = self._key(group)
        unknown: dict[str, int | bool] = {"between_jobs": True} if between_jobs else {}
        if place is not None:
            unknown |= {"member": place[0], "size": place[1]}
        ranks = () if between_jobs else ranks
        known = KnownGroup(
            number=self._recorder.add_group(key=key, axis=axis, rule=rule, ranks=ranks, **unknown),
            key=key,
            reference=weakref.ref(group),
            axis=axis,
            rule=rule,
            ranks=ranks,
            attempts_left=MAX_WRAPPER_LOOKUPS if rule == NO_RULE else 0,
        )
        self.known[id(group)] = known
        return known

    def _key(self, group: Any) -> str:
        """Return the group's name. A new group with the name of a destroyed one counts from 0, so it gets a suffix."""
        earlier = self.known.get(id(group))
        if earlier is not None and earlier.reference() is group:
            return earlier.key
        name = _text_attribute(group, "group_name") or "unregistered"
        self._num_by_name[name] = self._num_by_name.get(name, 0) + 1
        suffix = "" if self._num_by_name[name] == 1 else f"#{self._num_by_name[name]}"
        return f"{name}{suffix}"

    def _axis(self, group: Any, ranks: tuple[int, ...], wrapper: str | None, *, between_jobs: bool) -> tuple[str, str]:
        name, description = _text_attribute(group, "group_name"), _text_attribute(group, "group_desc")
        by_mesh = self._meshes.axis_of(name, len(ranks))  # called in every case: it also records the mesh
        declared = self._recorder.resolved_axes
        axis = declared.get(name) or declared.get(description)
        if axis:
            return axis, "told"
        if by_mesh:
            return by_mesh, "mesh"
        by_description = description.removeprefix("mesh_") if description.startswith("mesh_") else ""
        if by_description and description != "mesh_default" and not (wrapper and UNNAMED.fullmatch(description)):
            return by_description, "description"
        if between_jobs:
            return BETWEEN_JOBS_AXIS, BETWEEN_JOBS_RULE
        axis = known_axis(group, description)
        if axis:
            return axis, "framework"
        if wrapper:
            return wrapper, "wrapper"
        if not ranks:
            return "unregistered", NO_RULE
        if not NO_DESCRIPTION.fullmatch(description):
            return description, NO_RULE  # a wrapper may still claim it
        whole = len(ranks) == self._recorder.world_size
        return ("world" if whole else f"group:{','.join(map(str, ranks))}"), NO_RULE


def _ranks_of(group: Any) -> tuple[int, ...]:
    """Return the global ranks. Empty for a group that torch does not know (made by hand, or destroyed since)."""
    import torch.distributed as dist

    try:
        return tuple(dist.get_process_group_ranks(group))
    except (LookupError, ValueError, RuntimeError, AttributeError) as error:
        if is_asynchronous(error):
            raise
        return ()


def _place_in(group: Any) -> tuple[int, int] | None:
    """Return the rank's number in a group that torch does not know, and the number of members; None if unknown."""
    try:
        return int(group.rank()), int(group.size())
    except (LookupError, ValueError, RuntimeError, AttributeError, NotImplementedError) as error:
        if is_asynchronous(error):
            raise
        return None


def _spans_jobs(group: Any, ranks: tuple[int, ...], place: tuple[int, int] | None, *, world_size: int) -> bool:
    """Return whether the group has members in other jobs.

    Torch does not know it, and it has more members than the job has ranks. Or its registered ranks are more than
    torch's world has. Or torch knows this rank alone, and another library made its backend: so torchft connects
    replicas that are jobs of their own. Where these leave it open, all ranks of the run together show it
    (`traincope.timeline.collectives.between_jobs`).
    """
    import torch.distributed as dist

    initialized = dist.is_initialized()
    world = max(world_size, dist.get_world_size() if initialized else 1)
    if not ranks:
        return place is not None and place[1] > world
    if initialized and max(ranks) >= world:
        return True
    return len(ranks) == 1 and is_plugin(dist.get_backend(group))


def _text_attribute(group: Any, attribute: str) -> str:
    try:
        return str(getattr(group, attribute))
    except (LookupError, ValueError, RuntimeError, AttributeError) as error:
        if is_asynchronous(error):
            raise
        return ""


def calling_wrapper() -> str | None:
    """Return the axis of the innermost wrapper of a parallelism on this thread's stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        for prefix, axis in WRAPPERS:
            if module.startswith(prefix):
                return axis
        frame = frame.f_back
    return None
