"""Imported snapshots of torch's allocator, by rank and GPU."""

from dataclasses import dataclass

from traincope.store.side_tables.memory_snapshots import DeviceMemory, read_snapshot
from traincope.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSnapshot:
    """torch's allocator on one GPU of a rank. Reserved = allocated + awaiting free + inactive."""

    rank: int
    source: str
    """Name of the imported file."""
    memory: DeviceMemory


def rank_snapshots(timeline: Timeline) -> tuple[RankSnapshot, ...]:
    """Every imported snapshot, one entry per GPU. Raises RunDirectoryError for a damaged one."""
    found = []
    for rank in timeline.run.ranks:
        for snapshot in map(read_snapshot, rank.memory_snapshots):
            found += [
                RankSnapshot(rank=rank.rank, source=snapshot.source, memory=memory) for memory in snapshot.devices
            ]
    return tuple(found)
