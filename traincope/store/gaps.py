"""What a rank's records say of those that are not there."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from traincope.events import Kind
from traincope.store.layout import thread_and_index
from traincope.store.segments import SegmentRecords


def count_dropped(segments: Iterable[SegmentRecords]) -> int:
    """Records the recorder could not keep, by its own count."""
    return sum(int(segment.records["value"][segment.records["kind"] == Kind.DROPPED].sum()) for segment in segments)


def missing_segments(found: Iterable[Path], *, dropped: int) -> tuple[int, str]:
    """How many segments somebody has removed, and the name of the first: those `found` after them, in whatever state,
    show they were there.

    The disk budget takes those that follow a thread's first, and counts their records as `dropped`.
    """
    threads: dict[str, set[int]] = {}
    for path in found:
        thread, index = thread_and_index(path)
        threads.setdefault(thread, set()).add(index)
    gaps = [(f"{name}-{at:05d}.seg", n) for name in sorted(threads) for at, n in _gaps(threads[name], dropped=dropped)]
    return sum(length for _, length in gaps), gaps[0][0] if gaps else ""


def _gaps(present: set[int], *, dropped: int) -> Iterator[tuple[int, int]]:
    """First index and length of each."""
    before = -1
    for index in sorted(present):
        by_budget = before == 0 and dropped > 0
        if index > before + 1 and not by_budget:
            yield before + 1, index - before - 1
        before = index
