"""Process group -> number, name shared by its members, and mesh axis, with the rule that told."""

import sys
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from traincope.record.frameworks import known_axis
from traincope.record.meshes import Meshes
from traincope.record.recorder import Recorder

NO_RULE = "none"
WRAPPERS = (
    ("torch.distributed.fsdp", "fsdp"),
    ("torch.nn.parallel.distributed", "dp"),
    ("torch.distributed.pipelining", "pp"),
)
"""A module whose code calls the collective -> the axis it does so for."""


UNDECIDED = 16
"""How often a group whose axis nothing has told is looked at again, for a wrapper that calls."""


MAX_TAGS = 16_384
"""Counts kept for point-to-point operations of a group: a training whose tags never come again keeps the latest."""


@dataclass(slots=True)
class KnownGroup:
    """A group this process has seen, with the counts that identify its collectives."""

    number: int
    key: str
    """What its members call it, across ranks."""
    reference: weakref.ref[Any]
    axis: str
    rule: str
    ranks: tuple[int, ...]
    """Global ranks, by rank in the group."""
    looks_left: int = 0
    count: int = 0
    """Collectives issued on it by this process."""
    reducer: bool = False
    """Whether DDP's reducer waits for its collectives, out of sight."""
    point_to_point: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """(operation, peer, tag) -> how many."""

    def global_rank(self, peer: int) -> int:
        """Global rank of a peer given by its rank in the group."""
        return self.ranks[peer] if 0 <= peer < len(self.ranks) else peer

    def next_sequence(self, operation: str, peer: int, tag: int) -> int:
        """Number of the next point-to-point operation with that peer and tag."""
        key = (operation, peer, tag)
        sequence = self.point_to_point.get(key, 0)
        if not sequence and len(self.point_to_point) >= MAX_TAGS:
            del self.point_to_point[next(iter(self.point_to_point))]
        self.point_to_point[key] = sequence + 1
        return sequence


class Groups:
    """All groups this process has seen. Holds no group alive."""

    def __init__(self, recorder: Recorder, meshes: Meshes) -> None:
        self._recorder = recorder
        self._meshes = meshes
        self.known: dict[int, KnownGroup] = {}
        """By identity of the group; an identity may be used again, so check the reference."""
        self._before: dict[int, KnownGroup] = {}
        """Those that were known when all was counted anew."""
        self._made: dict[str, int] = {}
        """Name -> groups of that name so far."""
        self._since: int | None = None
        """The step that all is counted from; None: the beginning of the run."""

    def count_anew(self, step: int) -> None:
        """From here on, the beginning of that step, count from 0, under names that say so.

        Ranks that do so at different steps have no name in common: what is not the same collective never seems to be.
        """
        seen = self._before | self.known
        self._before = {key: known for key, known in seen.items() if known.reference() is not None}
        self._made.clear()
        self._since = step
        self.known.clear()

    def find(self, group: Any) -> KnownGroup:
        known = self.known.get(id(group))
        if known is None or known.reference() is not group:
            return self._add(group)
        if known.looks_left:
            known.looks_left -= 1
            wrapper = calling_wrapper()
            if wrapper:
                return self.claim(group, wrapper)
        return known

    def claim(self, group: Any, axis: str) -> KnownGroup:
        """A wrapper says what the group is for; a mesh that names it knows better."""
        known = self.known.get(id(group))
        if known is None or known.reference() is not group:
            return self._add(group, wrapper=axis)
        if known.rule != NO_RULE:
            return known
        claimed = self._add(group, wrapper=axis)
        claimed.count, claimed.point_to_point, claimed.reducer = known.count, known.point_to_point, known.reducer
        return claimed

    def _add(self, group: Any, *, wrapper: str | None = None) -> KnownGroup:
        ranks = _ranks_of(group)
        axis, rule = self._axis(group, ranks, wrapper or calling_wrapper())
        before = self._known_before(group)
        if before is not None and rule == NO_RULE:
            axis, rule = before.axis, before.rule
        key = self._key(group)
        known = KnownGroup(
            number=self._recorder.add_group(key=key, axis=axis, rule=rule, ranks=ranks),
            key=key,
            reference=weakref.ref(group),
            axis=axis,
            rule=rule,
            ranks=ranks,
            looks_left=UNDECIDED if rule == NO_RULE else 0,
            reducer=before is not None and before.reducer,
        )
        self.known[id(group)] = known
        return known

    def _known_before(self, group: Any) -> KnownGroup | None:
        before = self._before.get(id(group))
        return None if before is None or before.reference() is not group else before

    def _key(self, group: Any) -> str:
        """Its name; a group made anew under the name of one destroyed counts from 0 again, so it gets a number."""
        earlier = self.known.get(id(group))
        if earlier is not None and earlier.reference() is group:
            return earlier.key
        name = _told(group, "group_name") or "unregistered"
        self._made[name] = self._made.get(name, 0) + 1
        again = "" if self._made[name] == 1 else f"#{self._made[name]}"
        return f"{name}{again}" if self._since is None else f"{name}{again}@{self._since}"

    def _axis(self, group: Any, ranks: tuple[int, ...], wrapper: str | None) -> tuple[str, str]:
        name, described = _told(group, "group_name"), _told(group, "group_desc")
        by_mesh = self._meshes.axis_of(name, len(ranks))  # asked in any case: that notes the mesh too
        told = self._recorder.told_axes
        axis = told.get(name) or told.get(described)
        if axis:
            return axis, "told"
        if by_mesh:
            return by_mesh, "mesh"
        if described.startswith("mesh_") and described != "mesh_default":
            return described.removeprefix("mesh_"), "description"
        axis = known_axis(group, described)
        if axis:
            return axis, "framework"
        if wrapper:
            return wrapper, "wrapper"
        if not ranks:
            return "unregistered", NO_RULE
        whole = len(ranks) == self._recorder.world_size
        return ("world" if whole else f"group:{','.join(map(str, ranks))}"), NO_RULE


def _ranks_of(group: Any) -> tuple[int, ...]:
    """Global ranks; none for a group that torch does not know (made by hand, or destroyed meanwhile)."""
    import torch.distributed as dist

    try:
        return tuple(dist.get_process_group_ranks(group))
    except (LookupError, ValueError, RuntimeError, AttributeError):
        return ()


def _told(group: Any, attribute: str) -> str:
    try:
        return str(getattr(group, attribute))
    except (LookupError, ValueError, RuntimeError, AttributeError):
        return ""


def calling_wrapper() -> str | None:
    """The axis of the innermost data-parallel or pipeline wrapper on this thread's stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        for prefix, axis in WRAPPERS:
            if module.startswith(prefix):
                return axis
        frame = frame.f_back
    return None
