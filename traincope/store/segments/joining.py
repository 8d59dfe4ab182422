"""Records of one thread from several readings: successive copies of its latest records, and its own with copies after
them.

A copy holds the records of the last seconds, so two copies overlap. A record that had not ended in the earlier one has
its end in the later one. Records are only joined if nothing is missing in between: a hole would look like time in which
the rank did nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import AFTER_ALL_NS
from traincope.events import OPEN, Kind
from traincope.store.segments.segments import RECORD_DTYPE, SegmentRecords, last_instant_ns

MAIN = "main"
KEPT_NS = 5_000_000_000
"""A copy holds the records of this time before the rank's last one, ..."""
MAX_RECORDS, MAX_OTHERS = 3_840, 512
"""... but at most so many of the training thread and of another one, the newest ones: a copy fits into a message."""
MARGIN = 16
"""A copy with nearly so many records may be cut off: some that were read may have been left out."""


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
        if len(segment.records) > bound - MARGIN:
            ended = segment.records[(segment.records["end_ns"] != OPEN) & (segment.records["kind"] != Kind.CLOCK)]
            since_ns = max(since_ns, int(ended["start_ns"].min(initial=AFTER_ALL_NS)))
    return since_ns


def in_one(copies: Iterable[SegmentRecords]) -> tuple[SegmentRecords, ...]:
    """Join successive copies of a rank: one segment per thread, from the last gap on. Their index is their order."""
    return _chain(copies)[1]


def continued(own: Sequence[SegmentRecords], copies: Iterable[SegmentRecords]) -> tuple[SegmentRecords, ...] | None:
    """A rank's own records with those of successive copies after them; None if these have no later ones, or not all.

    Records before the last own one are its own only: what is missing there was given up on purpose.
    """
    since_ns, copy = _chain(copies)
    last_ns = max(map(_last_ns, own), default=0)
    if not own or since_ns > last_ns or max(map(_last_ns, copy), default=0) <= last_ns:
        return None
    result = list(own)
    for segment in copy:
        parts = [each for each in own if each.thread == segment.thread]
        begun_ns = max((int(each.records["start_ns"].max(initial=-1)) for each in parts), default=-1)
        added = segment.records[segment.records["start_ns"] > begun_ns]
        result = [_with_ends(each, segment) if each.thread == segment.thread else each for each in result]
        index = max((each.index for each in parts), default=-1) + 1
        result.append(replace(segment, index=index, records=added, lost_bytes=0, garbled=0))
    return tuple(result)


def _chain(copies: Iterable[SegmentRecords]) -> tuple[int, tuple[SegmentRecords, ...]]:
    """Join successive copies after the last gap between two. Also returns from which instant on they hold all."""
    by_index: dict[int, list[SegmentRecords]] = {}
    for copy in copies:
        by_index.setdefault(copy.index, []).append(copy)
    result: dict[str, SegmentRecords] = {}
    since_ns = last_ns = 0
    for index in sorted(by_index):
        latest = by_index[index]
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
