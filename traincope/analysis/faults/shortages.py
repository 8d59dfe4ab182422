"""Post-mortem of a rank that ran out of memory: what it asked for, what held the memory, what grew, and the remedy.

The message of the exception states the request, and on a GPU its size and free memory, with the digits that torch
prints. The recorder counts the tensors when the exception leaves the run: its frames still hold most of them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from traincope.analysis.faults.endings import by_kernel, exception_message
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.memory.census import GrownTensors
from traincope.analysis.memory.remedies import Remedy, remedy
from traincope.analysis.memory.split import FRAGMENTATION, UNKNOWN_USE, MemorySplit, RankSplits
from traincope.events import MemoryMeasure, Phase
from traincope.timeline import Timeline
from traincope.units import size

UNITS = {"bytes": 0, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "PiB": 50}
AMOUNT = r"(\d+(?:\.\d+)?) (bytes|B|KiB|MiB|GiB|TiB|PiB)"
REQUEST = re.compile(rf"(?:[Tt]ried to allocate|Unable to allocate) {AMOUNT}")
"""Words of torch on a GPU and on a CPU (`CUDACachingAllocator.cpp`, `alloc_cpu.cpp` of c10), and of numpy."""
CAPACITY = re.compile(rf"total capacity of {AMOUNT}|{AMOUNT} total capacity")
FREE = re.compile(rf"of which {AMOUNT} is free|{AMOUNT} free[;)]")
UNUSED = re.compile(rf"{AMOUNT} is reserved by PyTorch but unallocated")
MIN_GROWTH = 0.05
"""Least growth of a use, as a share of the total, that explains the shortage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """A shortage of memory that ended a rank."""

    rank: int
    step: int | None
    phase: str | None
    """Phase in which it ran out; None: between phases, or not known."""
    by_kernel: bool
    """The kernel killed the rank, as far as the host's memory shows: it left neither a message nor a last count."""
    request_bytes: int | None
    """The allocation that failed; None if the message does not state it."""
    limit_bytes: int | None
    """Memory of the GPU, or of the host."""
    free_bytes: int | None
    """Free memory of the GPU at that time."""
    split: MemorySplit | None
    """Use of the memory at the last count; None: the tensors were not counted."""
    use: str | None
    """The use to which the shortage is put down; None: unknown."""
    grown_bytes: int | None
    """Growth of that use since the first steps; None: it is the largest use, and did not grow."""
    remedy: Remedy

    @property
    def phrases(self) -> Sequence[str]:
        """The evidence in words, without what the exception's message states."""
        parts = []
        if self.request_bytes is not None:
            free = "" if self.free_bytes is None else f", {size(self.free_bytes)} free"
            limit = "" if self.limit_bytes is None else f" of a memory of {size(self.limit_bytes)}{free}"
            parts.append(f"it asked for {size(self.request_bytes)}{limit}")
        if self.split is not None:
            when = "at the last count" if self.by_kernel else f"in {self.phase}" if self.phase else "at the end"
            uses = sorted(self.split.parts.items(), key=lambda part: -part[1])
            named = ", ".join(f"{use} {size(num_bytes)}" for use, num_bytes in uses if num_bytes)
            parts.append(f"{when}, of {size(self.split.total_bytes)} {self.split.measure}: {named}")
        if self.use is not None and self.grown_bytes is not None:
            parts.append(f"{self.use} grew by {size(self.grown_bytes)} since the first steps")
        return parts


ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Settings of torch's allocator, by its older and its newer name."""


def shortages(
    timeline: Timeline,
    ends: Sequence[Fault],
    splits: Sequence[RankSplits],
    grown: Sequence[GrownTensors] = (),
) -> tuple[OutOfMemory, ...]:
    """One post-mortem for each end by a shortage of memory. All arguments are of the same timeline."""
    by_rank = {each.last.rank: each for each in splits}
    return tuple(
        _shortage(end, timeline, by_rank.get(end.ranks[0]), [each for each in grown if each.rank == end.ranks[0]])
        for end in ends
        if len(end.ranks) == 1 and (end.kind == FaultKind.OUT_OF_MEMORY or by_kernel(end))
    )


def _shortage(end: Fault, timeline: Timeline, splits: RankSplits | None, grown: Sequence[GrownTensors]) -> OutOfMemory:
    (rank,) = end.ranks
    message, killed = exception_message(timeline, rank), by_kernel(end)
    request, free = _amount(REQUEST, message), _amount(FREE, message)
    limit = _amount(CAPACITY, message) or _host_memory(timeline, rank)
    split = None if splits is None else splits.last
    of_host = killed or (request is not None and _amount(CAPACITY, message) is None)
    if split is not None and of_host and split.measure == MemoryMeasure.RESERVED:
        split = None  # the host's memory was short, and only the GPU's tensors were counted
    unused = _amount(UNUSED, message)
    if split is not None and split.fragmentation_bytes is not None and unused is not None:
        # The allocator's own count at the failure: what was freed since is not among it.
        total = split.total_bytes - split.fragmentation_bytes + unused
        split = replace(split, fragmentation_bytes=unused, total_bytes=total)
    use, grown_bytes = _blamed(split, {} if splits is None else splits.early, request=request, limit=limit)
    return OutOfMemory(
        rank=rank,
        step=end.step,
        phase=None if split is None or killed else split.phase,
        by_kernel=killed,
        request_bytes=request,
        limit_bytes=limit,
        free_bytes=free,
        split=split,
        use=use,
        grown_bytes=grown_bytes,
        remedy=_remedy(use, split, grown, timeline=timeline, rank=rank, request=request, limit=limit),
    )


def _blamed(
    split: MemorySplit | None, early: Mapping[str, int], *, request: int | None, limit: int | None
) -> tuple[str | None, int | None]:
    """The use that explains the shortage, and its growth.

    A request that no machine of this size can fulfil is explained by itself. Fragmentation explains one that would fit
    into what the allocator holds unused. Then comes the use that grew most since the first steps, then the largest,
    if it is known what that is.
    """
    if split is None or (request is not None and limit is not None and request > limit):
        return None, None
    parts = split.parts
    if request is not None and parts.get(FRAGMENTATION, 0) >= request:
        return FRAGMENTATION, None
    growth = {use: num_bytes - early[use] for use, num_bytes in parts.items() if use in early}
    most = max(growth, key=lambda use: growth[use], default=None)
    if most is not None and growth[most] >= MIN_GROWTH * split.total_bytes:
        return most, growth[most]
    largest = max(parts, key=lambda use: parts[use])
    return (None if largest == UNKNOWN_USE else largest), None


def _remedy(
    use: str | None,
    split: MemorySplit | None,
    grown: Sequence[GrownTensors],
    *,
    timeline: Timeline,
    rank: int,
    request: int | None,
    limit: int | None,
) -> Remedy:
    if request is not None and limit is not None and request > limit:
        text = f"Ask for less than the {size(limit)} of this memory at once: the traceback names the line."
        return Remedy(text=text, saved_bytes=None)
    if use is None or split is None:
        text = "Use a smaller microbatch. It is not known what most of the memory is used for."
        return Remedy(text=text, saved_bytes=None)
    main = next((each.main for each in timeline.ranks if each.rank == rank), None)
    found = remedy(
        use,
        split,
        mesh=_mesh(timeline, rank),
        recomputes=main is not None and bool((main["phase"] == Phase.RECOMPUTE).any()),
        expandable=any(
            "expandable_segments:True" in timeline.run.info.environment.get(name, "") for name in ALLOCATOR_VARIABLES
        ),
    )
    return found if not grown else replace(found, text=f"{found.text} The census saw {grown[0].phrase}.")


def _mesh(timeline: Timeline, rank: int) -> Mapping[str, int]:
    """Axis -> its size, also of axes that only the rank's groups name."""
    groups = next((each.groups for each in timeline.ranks if each.rank == rank), ())
    return {**{group.axis: len(group.ranks) for group in groups}, **timeline.run.info.mesh}


def _amount(pattern: re.Pattern[str], message: str) -> int | None:
    """Bytes of the amount that a pattern finds; None without one."""
    match = pattern.search(message)
    if match is None:
        return None
    number, unit = [group for group in match.groups() if group is not None][:2]
    return round(float(number) * (1 << UNITS[unit]))


def _host_memory(timeline: Timeline, rank: int) -> int | None:
    """Memory of the rank's host; None on a GPU, whose memory the message states, or if it is not known."""
    device = next((each.info.device for each in timeline.run.ranks if each.rank == rank), {})
    limit = device.get("memory_bytes")
    return limit if isinstance(limit, int) and "uuid" not in device else None
