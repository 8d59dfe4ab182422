"""Finding about imported snapshots of torch's allocator."""

from collections.abc import Iterator, Sequence

from traincope.analysis.confidence import HIGH
from traincope.analysis.memory.snapshots import RankSnapshot
from traincope.analysis.verdict.findings import Finding, FindingKind, percent
from traincope.store.side_tables.memory_snapshots import DeviceMemory
from traincope.units import size

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
