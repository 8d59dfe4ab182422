"""Collectives of a GPU: the group, operation and count of each communication kernel.

torch writes them to the kernel, or only to the operator `record_param_comms` that launched it. Older torch writes
neither: then the operation comes from the annotation around the launch or from the kernel's name. The group is unknown,
so the kernels of different ranks are not matched: the order of all of a rank's collectives does not identify one.
"""

import functools
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traincope.arrays import Codes, Ints
from traincope.events import NO_STEP
from traincope.ingest.traces.collectives import ANNOTATION_OF, GATHERED, OPERATOR
from traincope.ingest.traces.recorded_call import SIZES
from traincope.store.job.manifests import RunInfo
from traincope.store.side_tables.traces import HOST_OPERATOR, UNKNOWN, Trace, TraceCollective
from traincope.timeline.device.ranges import NAMED, innermost
from traincope.timeline.device.steps import DeviceSteps
from traincope.timeline.device.works import Works
from traincope.timeline.intervals.painting import ABSENT
from traincope.topology import Group

WORLD, UNKNOWN_AXIS = "world", "unknown"
DEFAULT_GROUPS = frozenset({"default_pg", "default_group"})
MESH = "mesh_"
"""Begin of the descriptions of a DeviceMesh's groups; the axis follows."""

KERNEL_OF = re.compile(r"(?:nccl|rccl)\w*?Kernel_([A-Za-z]+)", re.IGNORECASE)
"""Operation in the name of a communication kernel."""

SEND_RECV = "send_recv"
OPERATIONS = (
    ("all_reduce", ("allreduce", "crossdevicereduce")),
    ("all_gather", ("allgather",)),
    ("reduce_scatter", ("reducescatter",)),
    ("all_to_all", ("alltoall", "all2all", "dispatch", "combine")),
    (SEND_RECV, ("sendrecv", "send", "recv")),
    ("broadcast", ("broadcast",)),
    ("barrier", ("barrier",)),
    ("reduce", ("reduce",)),
    ("gather", ("gather",)),
    ("scatter", ("scatter",)),
)
"""Operation -> words of its names without underscores, in lower case. The first that matches decides."""
OTHER = "collective"

ITEM_BYTES = {
    **dict.fromkeys(("double", "long", "complexfloat"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("bfloat16", "half", "short"), 2),
    **dict.fromkeys(("byte", "char", "bool"), 1),
}
"""torch's name of a dtype in lower case -> bytes. Names with `float8` have 1."""
MAX_ELEMENTS = 1 << 48
"""Larger numbers are damage."""
GATHERS = frozenset({"all_gather", "gather"})
"""Operations whose bytes are those of the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCollectives:
    """Communication kernels of one GPU: one entry each, in order of launch."""

    work: Ints
    group: Ints
    """Position in `groups`."""
    operation: Ints
    """Position in `operations`."""
    num_bytes: Ints
    """0: unknown."""
    window: Ints
    """The host's step of the launch: counts begin anew in each, because traces may begin at different collectives."""
    sequence: Ints
    """Count on the group in that step."""
    groups: tuple[Group, ...]
    operations: tuple[str, ...]


def device_collectives(
    trace: Trace, works: Works, steps: DeviceSteps, *, rank: int, info: RunInfo
) -> DeviceCollectives:
    """Find the collective of each communication kernel."""
    sends = np.flatnonzero(works.communication)
    sends = sends[np.lexsort((trace.correlation[works.row[sends]], works.launched_ns[sends]))]
    known = _metadata(trace, works, sends)
    stated = [trace.collectives[at] if at != UNKNOWN else None for at in known.tolist()]
    around = _around(trace, works, sends, named=ANNOTATION_OF)
    operation = list(map(_operation, stated, _annotations(trace, around), _kernels(trace, works, sends)))
    step = steps.launched_in(works.launched_ns[sends])
    window = np.maximum(step, 0)
    cached = functools.cache(functools.partial(_identity, rank=rank, info=info))
    identity = [
        cached(_group(trace, entry), matched=_can_match(name, number, steps, entry))
        for name, number, entry in zip(operation, step.tolist(), stated, strict=True)
    ]
    groups, operations = tuple(dict.fromkeys(identity)), tuple(dict.fromkeys(operation))
    group = np.array([groups.index(each) for each in identity], dtype=np.int64)
    return DeviceCollectives(
        work=sends,
        group=group,
        operation=np.array([operations.index(each) for each in operation], dtype=np.int64),
        num_bytes=np.array(
            list(map(_num_bytes, operation, stated, _sizes(trace, works, sends, around))), dtype=np.int64
        ),
        window=window,
        sequence=_counts(group, window),
        groups=tuple(
            Group(number=number, key=key, axis=axis, rule=rule, ranks=ranks, matched=matched)
            for number, (key, axis, rule, ranks, matched) in enumerate(groups)
        ),
        operations=operations,
    )


def _metadata(trace: Trace, works: Works, sends: Ints) -> Codes:
    """Return the collective that the kernel states, otherwise that of the operator around its launch."""
    known = trace.collective[works.row[sends]]
    named = np.array([name == OPERATOR for name in trace.names] or [False])[trace.name]
    at = innermost(trace, trace.of_category(HOST_OPERATOR) & named & (trace.collective != UNKNOWN), works, sends)
    return np.where((known != UNKNOWN) | (at == ABSENT), known, np.append(trace.collective, UNKNOWN)[at])


def _around(trace: Trace, works: Works, sends: Ints, *, named: re.Pattern[str]) -> Ints:
    """Return the row of the innermost range of such a name around each launch; ABSENT without one."""
    matches = np.array([named.fullmatch(name) is not None for name in trace.names] or [False])
    return innermost(trace, trace.of_category(*NAMED) & matches[trace.name], works, sends)


def _annotations(trace: Trace, around: Ints) -> list[str]:
    """Return the operation by each annotation; empty without one."""
    named = [match[1] if (match := ANNOTATION_OF.fullmatch(name)) else "" for name in trace.names]
    return ["" if row == ABSENT else named[trace.name[row]] for row in around.tolist()]


def _sizes(trace: Trace, works: Works, sends: Ints, around: Ints) -> list[TraceCollective | None]:
    """Return the sizes by the recorded shapes around each launch: an operator that gathers has those of its output."""
    gathered = _around(trace, works, sends, named=GATHERED)
    row = np.where(gathered == ABSENT, around, gathered)
    known = np.where(row == ABSENT, UNKNOWN, np.append(trace.collective, UNKNOWN)[row])
    return [trace.collectives[at] if at != UNKNOWN else None for at in known.tolist()]


def _kernels(trace: Trace, works: Works, sends: Ints) -> list[str]:
    """Return the operation by each kernel's name, or the whole name."""
    of_name = [match[1] if (match := KERNEL_OF.search(name)) else name for name in trace.names]
    return [of_name[at] for at in trace.name[works.row[sends]].tolist()]


def _counts(group: Ints, window: Ints) -> Ints:
    """Number the entries of each group and window from 0."""
    _, of = np.unique(np.stack([group, window]), axis=1, return_inverse=True)
    of = of.reshape(-1)
    order = np.argsort(of, kind="stable")
    first = np.searchsorted(of[order], of[order], side="left")
    counts = np.empty(len(of), dtype=np.int64)
    counts[order] = np.arange(len(of)) - first
    return counts


class _StatedGroup(NamedTuple):
    """Facts about a group in a collective's metadata."""

    name: str | None
    description: str
    ranks: tuple[int, ...]
    size: int | None


def _group(trace: Trace, stated: TraceCollective | None) -> _StatedGroup | None:
    """Return the group; None if it has neither name nor ranks."""
    ranks = () if stated is None else trace.ranks_of(stated)
    if stated is None or (stated.group is None and not ranks):
        return None
    return _StatedGroup(stated.group, stated.description or "", ranks, stated.group_size)


def _can_match(operation: str, step: int, steps: DeviceSteps, stated: TraceCollective | None) -> bool:
    """Return whether the step and the count in it identify the collective on all ranks.

    They do not where a trace numbers its own steps, before the first step, and for messages in a group of more than two
    ranks, of which each rank has its own number.
    """
    size = None if stated is None else stated.group_size or len(stated.ranks)
    return step != NO_STEP and not steps.own_numbers and (operation != SEND_RECV or size == 2)


def _identity(
    group: _StatedGroup | None, *, matched: bool, rank: int, info: RunInfo
) -> tuple[str, str, str, tuple[int, ...], bool]:
    """Return key, axis, rule and ranks of a group, and whether it is matched.

    The key of an unmatched one is the rank's own, so that no other rank has a part in its instances.
    """
    if group is None:
        return f"unknown, rank {rank}", UNKNOWN_AXIS, "none", (rank, UNKNOWN), False
    everyone, given = tuple(range(info.world_size)), info.settings.get("axes", {})
    has_everyone = group.ranks == everyone or (not group.ranks and group.size == info.world_size)
    if axis_given := given.get(group.name) or given.get(group.description):
        axis, rule = str(axis_given), "told"
    elif group.description in DEFAULT_GROUPS or (not group.description and has_everyone):
        axis, rule = WORLD, "none"
    elif group.description and group.description != "undefined":
        axis, rule = group.description.removeprefix(MESH), "description"
    else:
        axis, rule = f"group:{','.join(map(str, group.ranks))}", "none"
    members = group.ranks or (everyone if group.size in (None, info.world_size) else (rank, UNKNOWN))
    key = f"{group.name or ''}:{','.join(map(str, members))}"
    if matched:
        return key, axis, rule, members, True
    return f"{key}, rank {rank}", axis, rule, members if len(members) > 1 else (rank, UNKNOWN), False


def _operation(stated: TraceCollective | None, annotation: str, kernel: str) -> str:
    """Return the operation by the most certain of its names."""
    for name in (("" if stated is None else stated.name or ""), annotation, kernel):
        text = name.lower().replace("_", "")
        for operation, words in OPERATIONS:
            if any(word in text for word in words):
                return operation
    return OTHER


def _num_bytes(operation: str, stated: TraceCollective | None, by_shapes: TraceCollective | None) -> int:
    """Bytes that a collective states, otherwise those of the shapes around it; 0 if both are unknown."""
    return _bytes_of(operation, stated) or _bytes_of(operation, by_shapes)


def _bytes_of(operation: str, known: TraceCollective | None) -> int:
    if known is None or known.dtype is None:
        return 0
    elements = known.out_elements if operation in GATHERS else known.in_elements
    dtype = known.dtype.lower().removeprefix("c10::").replace("_", "")
    size = 1 if "float8" in dtype else ITEM_BYTES.get(dtype) or SIZES.get(known.dtype, 0)
    return min(elements or 0, MAX_ELEMENTS) * size
