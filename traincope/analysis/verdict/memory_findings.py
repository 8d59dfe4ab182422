"""Findings about memory: ranks whose memory grows steadily, and imported snapshots of torch's allocator."""

from collections.abc import Iterator, Sequence

from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.memory.census import GrownTensors
from traincope.analysis.memory.snapshots import RankSnapshot
from traincope.analysis.memory.uses import MemoryUse
from traincope.analysis.verdict.findings import Finding, FindingKind, percent
from traincope.events import MemoryMeasure
from traincope.store.side_tables.memory_snapshots import DeviceMemory
from traincope.units import count, duration, size

RELEASE = "Release tensors kept from step to step: sum losses with .item(), and empty lists and caches."
DETACH = (
    "Keep no tensor with its graph from step to step: keep loss.item() or loss.detach(), which frees what the graph of "
    "its step holds."
)
FORGET = (
    "Let the Dataset keep no sample that a worker has read: each worker has its own copy, which grows until it ends. "
    "Without persistent_workers, new workers start in each epoch."
)
SPAN_STEPS = 100
"""Number of steps for which the growth is given."""
HOUR_NS = 3_600 * 10**9
LONG_NS = 30 * 24 * HOUR_NS
"""Time until the memory is exhausted from which a growth is no finding."""
MAX_NAMED = 4
"""With more growing ranks than this, only the fastest are described."""


def memory_growth(uses: Sequence[MemoryUse], grown: Sequence[GrownTensors] = ()) -> Iterator[Finding]:
    """Yield one finding for each measure that grows, with all its ranks, the fastest first in the evidence.

    A growth that leaves the memory enough for `LONG_NS` is none: hardly a run lasts as long.
    `grown`: what the census of live tensors saw. It is a second kind of evidence, of the same ranks.
    """
    ending = (use for use in uses if use.leak and (use.exhausted_in_ns is None or use.exhausted_in_ns <= LONG_NS))
    leaks = sorted(ending, key=lambda use: -(use.growth_bytes_per_step or 0.0))
    for measure in dict.fromkeys(use.measure for use in leaks):
        yield _growing([use for use in leaks if use.measure == measure], grown)


def _growing(leaks: Sequence[MemoryUse], grown: Sequence[GrownTensors]) -> Finding:
    """Build the finding of one measure; `leaks` has one entry per rank, the fastest first."""
    ranks = tuple(sorted({use.rank for use in leaks}))
    of_workers = leaks[0].measure == MemoryMeasure.LOADER_WORKERS
    subject = "memory of the loader workers" if of_workers else f"{leaks[0].measure} memory"
    seen = [each for each in grown if each.rank in ranks and not of_workers]
    named = [f"on rank {use.rank} by {_growth(use)} to {size(use.last_bytes)}" for use in leaks[:MAX_NAMED]]
    more = [f"and on {count(len(ranks) - MAX_NAMED, 'more rank')}"] if len(ranks) > MAX_NAMED else []
    ends = [(use.exhausted_in_ns, use.exhausted_at_step) for use in leaks if use.exhausted_in_ns is not None]
    exhausted = [_exhausted(*min(ends))] if ends else []
    of_rank = [each for each in seen if each.rank == seen[0].rank]
    named_groups = [*of_rank[:1], *[each for each in of_rank[1:] if each.held_by is not None][:1]]
    saw = " and ".join(each.phrase for each in named_groups)
    census = [f"the census of rank {seen[0].rank} saw {saw}"] if seen else []
    return Finding(
        kind=FindingKind.MEMORY_GROWTH,
        ranks=ranks,
        confidence=HIGH if {each.rank for each in seen} == set(ranks) else MEDIUM,
        evidence="; ".join([f"{subject} grows steadily, " + ", ".join([*named, *more]), *exhausted, *census]),
        advice=FORGET if of_workers else DETACH if any(each.has_graph for each in seen) else RELEASE,
    )


def _exhausted(in_ns: int, at_step: int | None) -> str:
    left = duration(in_ns) if in_ns < HOUR_NS else f"{in_ns / HOUR_NS:,.1f} hours"
    return f"at this rate the memory is exhausted in {left}, by step {at_step:,} at the latest"


def _growth(use: MemoryUse) -> str:
    return f"{size(SPAN_STEPS * (use.growth_bytes_per_step or 0.0))} per {SPAN_STEPS} steps"


LARGE_INACTIVE = 0.2
"""Share of the reserved memory above the highest allocation from which fragmentation is worth a change."""
EXPANDABLE = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, so that free blocks join into larger ones."


def snapshot_findings(snapshots: Sequence[RankSnapshot]) -> Iterator[Finding]:
    """Yield one finding, about the GPU that holds most."""
    if not snapshots:
        return
    fullest = max(snapshots, key=lambda each: each.memory.reserved_bytes)
    memory = fullest.memory
    parts = [
        f"GPU {memory.device} of rank {fullest.rank} holds {size(memory.reserved_bytes)}: "
        f"{size(memory.allocated_bytes)} allocated, {size(memory.inactive_bytes)} free in blocks of at most "
        f"{size(memory.largest_inactive_bytes)}"
    ]
    parts += _free(memory)
    if memory.awaiting_free_bytes:
        parts.append(f"{size(memory.awaiting_free_bytes)} await the end of another stream's work")
    if memory.out_of_memory_bytes:
        parts.append(f"a request for {size(memory.out_of_memory_bytes[-1])} failed")
    if memory.sites:
        site = memory.sites[0]
        share = percent(site.bytes / memory.allocated_bytes)
        parts.append(f"{share} of the allocated bytes come from {site.place or 'allocations without a stack'}")
    yield Finding(
        kind=FindingKind.GPU_MEMORY,
        ranks=(fullest.rank,),
        confidence=HIGH,
        evidence="; ".join(parts),
        advice=_advice(memory),
    )


def _advice(memory: DeviceMemory) -> str:
    """Advise against fragments only where they are shown: free blocks that a peak left behind are cache."""
    failed = memory.out_of_memory_bytes[-1] if memory.out_of_memory_bytes else None
    spare = None if memory.peak_bytes is None else memory.reserved_bytes - memory.peak_bytes
    fragmented = (
        memory.inactive_bytes >= failed if failed is not None else spare is not None and spare >= _large(memory)
    )
    return EXPANDABLE if fragmented and memory.expandable_segments < memory.segments else ""


def _large(memory: DeviceMemory) -> float:
    return LARGE_INACTIVE * memory.reserved_bytes


def _free(memory: DeviceMemory) -> Iterator[str]:
    """Say what large free blocks are, if the history of allocations shows it."""
    if not memory.inactive_bytes or memory.inactive_bytes < _large(memory) or memory.out_of_memory_bytes:
        return
    if memory.peak_bytes is None:
        yield "no history shows whether the free blocks are the cache of a peak or fragments"
    elif memory.reserved_bytes - memory.peak_bytes < _large(memory):
        yield f"the free blocks are the cache of a peak of {size(memory.peak_bytes)}"
