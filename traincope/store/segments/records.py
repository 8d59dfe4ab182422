"""Record files in either form, and gaps in a rank's records: dropped events and deleted segments."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from traincope.errors import refusals
from traincope.events import Kind
from traincope.store.layout import COMPACTED, SEGMENT, thread_and_index
from traincope.store.segments.compacted import read_compacted
from traincope.store.segments.segments import SegmentRecords, read_segment


def read_records(path: Path) -> SegmentRecords:
    """Read a segment or a compacted segment; a segment that an agent has compacted meanwhile, in its new form.

    Raises like `read_segment` and `read_compacted`, and UnreadableError if the system refuses.
    """
    compacted = path.with_suffix(COMPACTED)
    with refusals(path):
        is_compacted = path.suffix == SEGMENT and not path.exists() and compacted.exists()
        place = compacted if is_compacted else path
        if place.suffix != COMPACTED:
            return read_segment(place)
        with place.open("rb"):  # pyarrow would take a directory for a set of files
            return read_compacted(place)


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
