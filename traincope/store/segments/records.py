"""Record files in either form, and gaps in a rank's records: dropped events and deleted segments."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from traincope.events import Kind
from traincope.store.layout import COMPACTED, thread_and_index
from traincope.store.segments.compacted import read_compacted
from traincope.store.segments.segments import SegmentRecords, read_segment


def read_records(path: Path) -> SegmentRecords:
    """Read a segment or a compacted segment. Raises like `read_segment` and `read_compacted`."""
    return read_compacted(path) if path.suffix == COMPACTED else read_segment(path)


def count_dropped(segments: Iterable[SegmentRecords]) -> int:
    """Number of dropped events, by the recorder's own count."""
    return sum(int(segment.records["value"][segment.records["kind"] == Kind.DROPPED].sum()) for segment in segments)


def missing_segments(paths: Iterable[Path], *, dropped: int) -> tuple[int, str]:
    """Number of deleted segments, and the name of the first. Later segments in `paths` prove that they existed.

    The disk budget deletes segments after a thread's first one and counts their records as `dropped`; such gaps
    do not count.
    """
    threads: dict[str, set[int]] = {}
    for path in paths:
        thread, index = thread_and_index(path)
        threads.setdefault(thread, set()).add(index)
    gaps = [(f"{name}-{at:05d}.seg", n) for name in sorted(threads) for at, n in _gaps(threads[name], dropped=dropped)]
    return sum(length for _, length in gaps), gaps[0][0] if gaps else ""


def _gaps(present: set[int], *, dropped: int) -> Iterator[tuple[int, int]]:
    """First index and length of each gap."""
    before = -1
    for index in sorted(present):
        by_budget = before == 0 and dropped > 0
        if index > before + 1 and not by_budget:
            yield before + 1, index - before - 1
        before = index
