"""Records of one thread from several readings: successive copies of its latest records, and its own with copies after
them.

A copy holds the records of the last seconds, so two copies overlap. A record that had not ended in the earlier one has
its end in the later one. Records are only joined if nothing is missing in between: a hole would look like time in which
the rank did nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import AFTER_ALL_NS
from traincope.events import OPEN, Kind
from traincope.store.segments.segments import RECORD_DTYPE, SegmentRecords, last_instant_ns

MAIN = "main"
KEPT_NS = 5_000_000_000
"""A copy holds the records of this time before the rank's last one, ..."""
MAX_RECORDS, MAX_OTHERS = 16_384, 2_048
"""... but at most so many of the training thread and of another one, the newest ones: 3,200 and 400 per second."""
MARGIN = 16
"""A copy with nearly so many records may be cut off: some that were read may have been left out."""
NUM_FIRST = 16
"""The latest begin of so many first records bounds from when on a thread has all. Those of a device are written after
the fact, and nearly in the order of their begins."""


def joined(before: NDArray[np.void], new: NDArray[np.void]) -> NDArray[np.void]:
    """The records of both in order of start. The new form of a record, which may have ended since, replaces the old."""
    replaced = np.isin(_begins(before), _begins(new))
    both = np.concatenate([before[~replaced], new])
    ordered: NDArray[np.void] = both[np.argsort(both["start_ns"], kind="stable")]
    return ordered


def held_since_ns(copy: Sequence[SegmentRecords]) -> int:
    """The instant from which on a copy holds all that its rank began."""
    since_ns = max(map(_last_ns, copy), default=0) - KEPT_NS
    for segment in copy:
        bound = MAX_RECORDS if segment.thread == MAIN else MAX_OTHERS
        if segment.cut or len(segment.records) > bound - MARGIN:
            since_ns = max(since_ns, first_written_ns(segment.records))
    return since_ns


def first_written_ns(records: NDArray[np.void]) -> int:
    """An instant from which on a thread has all records, if it has none from before the first one in the file.

    Records that are written after the fact begin before others that precede them in the file, so the earliest begin
    proves nothing. Without records: a time after all.
    """
    events = records[records["kind"] != Kind.CLOCK]
    return int(events["start_ns"][:NUM_FIRST].max()) if len(events) else AFTER_ALL_NS


def in_one(copies: Iterable[SegmentRecords]) -> tuple[SegmentRecords, ...]:
    """Join successive copies of a rank: one segment per thread, from the last gap on."""
    return _chain(copies)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """A rank's own records with those of copies after them."""

    segments: tuple[SegmentRecords, ...]
    holes: tuple[str, ...]
    """Threads that are not continued: some of their records between the own ones and the copies may be missing."""


def continued(own: Sequence[SegmentRecords], copies: Iterable[SegmentRecords]) -> Continued | None:
    """Continue a rank's own records with successive copies. None if these have no later records, or begin later.

    Records from more than `KEPT_NS` before the last own one of a thread are its own only: what is missing there was
    given up on purpose. Later ones may have been written after the fact, and after the own ones were shipped.
    """
    since_ns, copy = _chain(copies)
    last_ns = max(map(_last_ns, own), default=0)
    if not own or since_ns > last_ns or max(map(_last_ns, copy), default=0) <= last_ns:
        return None
    result, holes = list(own), []
    for segment in copy:
        parts = [each for each in own if each.thread == segment.thread]
        added = _added(parts, segment)
        result = [_with_ends(each, segment) if each.thread == segment.thread else each for each in result]
        if not len(added):
            continue
        if _is_hole(parts, segment, since_ns=since_ns):
            holes.append(segment.thread)
            continue
        index = max((each.index for each in parts), default=-1) + 1
        result.append(replace(segment, index=index, records=added, lost_bytes=0, garbled=0, cut=False))
    return Continued(segments=tuple(result), holes=tuple(holes))


def gap_ns(own: Sequence[SegmentRecords], copies: Iterable[SegmentRecords]) -> tuple[int, int]:
    """Time between a rank's own records and copies that begin later, and the time of what these hold, in ns. Zeros if
    they touch.
    """
    since_ns, copy = _chain(copies)
    last_ns, copied_ns = (max(map(_last_ns, segments), default=0) for segments in (own, copy))
    return (since_ns - last_ns, copied_ns - since_ns) if copied_ns > since_ns > last_ns > 0 else (0, 0)


def _added(own: Sequence[SegmentRecords], copy: SegmentRecords) -> NDArray[np.void]:
    """The records of a thread that only its copy has."""
    begun_ns = max((int(each.records["start_ns"].max(initial=-1)) for each in own), default=-1)
    present = np.concatenate([np.empty(0, dtype=np.int64), *(_begins(each.records) for each in own)])
    is_new = (copy.records["start_ns"] > begun_ns - KEPT_NS) & ~np.isin(_begins(copy.records), present)
    return np.asarray(copy.records[is_new])


def _is_hole(own: Sequence[SegmentRecords], copy: SegmentRecords, *, since_ns: int) -> bool:
    """Return whether records of a thread may be missing before what the copies hold. A thread may begin later: then
    its first record, the clock, is in the copy.
    """
    last_ns = max(map(_last_ns, own), default=0)
    return last_ns < since_ns and (last_ns > 0 or int(copy.records["start_ns"].min()) < since_ns)


def _chain(copies: Iterable[SegmentRecords]) -> tuple[int, tuple[SegmentRecords, ...]]:
    """Join successive copies after the last gap between two. Also returns from which instant on they hold all.

    Records of one copy have the same index. Copies of an earlier chain, with other indices, may still be there.
    """
    by_index: dict[int, list[SegmentRecords]] = {}
    for copy in copies:
        by_index.setdefault(copy.index, []).append(copy)
    result: dict[str, SegmentRecords] = {}
    since_ns = last_ns = 0
    for latest in sorted(by_index.values(), key=lambda each: max(map(_last_ns, each))):
        if (held_ns := held_since_ns(latest)) > last_ns or not result:
            result, since_ns = {}, held_ns
        last_ns = max(map(_last_ns, latest))
        for new in latest:
            before = result.get(new.thread)
            result[new.thread] = new if before is None else replace(new, records=joined(before.records, new.records))
    return since_ns, tuple(result.values())


def _with_ends(own: SegmentRecords, copy: SegmentRecords) -> SegmentRecords:
    """The own records, with the ends that the copy knows."""
    still_open = np.flatnonzero(own.records["end_ns"] == OPEN)
    begins, known = _begins(own.records[still_open]), copy.records[copy.records["end_ns"] != OPEN]
    _, at, at_known = np.intersect1d(begins, _begins(known), return_indices=True)
    if not len(at):
        return own
    records = np.array(own.records, dtype=RECORD_DTYPE)
    records[still_open[at]] = known[at_known]
    return replace(own, records=records)


def _last_ns(segment: SegmentRecords) -> int:
    return last_instant_ns(segment.records)


def _begins(records: NDArray[np.void]) -> NDArray[np.int64]:
    """Start and kind of each record of a thread: no two have the same."""
    return np.asarray(records["start_ns"] * (max(Kind) + 1) + records["kind"])
