"""Collectives on a GPU by NCCL's own times, on the axis of the marks.

NCCL's kernels give their times by the GPU's global timer, a clock apart from that of the marks. But no stall ends
before the kernel that it waits for, and most end with it. So in each step the smallest time by which a stall's end
follows its kernel's end ties the two clocks.

A stall is the time in which kernels run that the compute stream waits for: those of its own collective, and those
before it on NCCL's stream. So it is cut into their runs, each with a wait and a transfer of its own. In the rest of it
no known kernel ran.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import AFTER_ALL_NS, Bools, Ints, chosen
from traincope.events import Flag, Kind
from traincope.timeline.collectives.nccl import NcclRuns
from traincope.timeline.intervals.numbering import UNKNOWN
from traincope.timeline.intervals.painting import ABSENT, Painted, painted, ranges

NO_SEQUENCE = np.iinfo(np.uint32).max
"""Count of no collective: that of the part of a stall in which no known kernel ran."""
RESOLUTION_NS = 1_000
"""The last digit of a mark's time. A shorter part of a stall belongs to the run next to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Collectives of a rank's GPU, by NCCL."""

    records: NDArray[np.void]
    """COLLECTIVE records from the begin to the end on the GPU, in order of begin."""
    tied: bool
    """False if no stall ties the GPU's timer to the marks. Then only the lengths of the records are exact."""

    @classmethod
    def of(cls, runs: NcclRuns, stalls: NDArray[np.void]) -> "Running":
        """Place the runs on the axis of the marks."""
        runs = runs.only(runs.timed)
        offset_ns = _offsets(runs, stalls)
        tied = offset_ns is not None
        if offset_ns is None:
            offset_ns = runs.seen_ns - runs.device_end_ns
        records = runs.calls.copy()
        records["start_ns"], records["end_ns"] = runs.device_start_ns + offset_ns, runs.device_end_ns + offset_ns
        records["tag"], records["flags"] = 0, records["flags"] & ~np.uint16(Flag.DONE_BEFORE_WAIT)
        return cls(records=chosen(records, np.argsort(records["start_ns"], kind="stable")), tied=tied)

    def replacing(self, collectives: NDArray[np.void]) -> NDArray[np.void]:
        """Return collectives that marks show, with these instead of the same ones."""
        others = collectives[_places(collectives, self.records) == UNKNOWN]
        return np.concatenate([others, self.records])

    def cut(self, records: NDArray[np.void]) -> NDArray[np.void]:
        """Cut the stalls among the records that wait for one of these collectives. The order stays.

        Without a tie, it is not known what ran during a stall.
        """
        direct = records["flags"] & Flag.POINT_TO_POINT > 0
        known = (records["kind"] == Kind.STALL) & ~direct & (_places(records, self.records) != UNKNOWN)
        at = np.flatnonzero(known)
        stalls = records[at]
        running = self.records if self.tied else self.records[:0]
        pieces = painted(running["start_ns"], running["end_ns"])
        of, start_ns, end_ns, owner = _cut(stalls["start_ns"], stalls["end_ns"], pieces)
        parts = stalls[of]
        parts["start_ns"], parts["end_ns"] = start_ns, end_ns
        run, known_run = np.append(running, np.zeros(1, dtype=records.dtype))[owner], owner != ABSENT
        for field in ("name", "group", "window", "sequence", "value"):
            parts[field] = np.where(known_run, run[field], parts[field])
        parts["sequence"][~known_run] = NO_SEQUENCE
        place = np.concatenate([np.flatnonzero(~known), at[of]])
        order = np.argsort(place, kind="stable")
        return np.concatenate([records[~known], parts])[order]


def _offsets(runs: NcclRuns, stalls: NDArray[np.void]) -> Ints | None:
    """Return, for each run, the time of the marks' axis less that of the GPU's timer, by the nearest step with a stall
    that ends with its collective.
    """
    closing = stalls[stalls["flags"] & (Flag.POINT_TO_POINT | Flag.DONE_BEFORE_WAIT) == 0]
    place = _places(closing, runs.calls)
    closing, place = closing[place != UNKNOWN], place[place != UNKNOWN]
    if not len(closing):
        return None
    steps, of = np.unique(closing["step"].astype(np.int64), return_inverse=True)
    least_ns = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(least_ns, of, closing["end_ns"] - runs.device_end_ns[place])
    return least_ns[_nearest(steps, runs.calls["step"].astype(np.int64))]


def _nearest(values: Ints, to: Ints) -> Ints:
    """Return the position of the nearest of the ascending values."""
    after = np.clip(np.searchsorted(values, to), 1, max(len(values) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(values) - 1)
    nearer: Bools = to - values[before] <= values[after] - to
    return np.where(nearer, before, after)


def _places(records: NDArray[np.void], among: NDArray[np.void]) -> Ints:
    """Return the position of each record's collective among others of the same rank; UNKNOWN without one."""
    keys = [
        np.stack([of[name].astype(np.int64) for name in ("group", "window", "sequence")]) for of in (records, among)
    ]
    _, code = np.unique(np.concatenate(keys, axis=1), axis=1, return_inverse=True)
    code = code.reshape(-1)
    place = np.full(int(code.max(initial=-1)) + 1, UNKNOWN)
    place[code[len(records) :]] = np.arange(len(among))
    found: Ints = place[code[: len(records)]]
    return found


def _cut(starts_ns: Ints, ends_ns: Ints, pieces: Painted) -> tuple[Ints, Ints, Ints, Ints]:
    """Cut intervals by disjoint pieces. Returns the interval, begin, end and owner of each part, in order; ABSENT: no
    piece is there. Absent parts shorter than the resolution belong to the part before them, or to the one after.
    """
    first = np.searchsorted(pieces.end_ns, starts_ns, side="right")
    last = np.maximum(np.searchsorted(pieces.start_ns, ends_ns, side="left"), first)
    piece, of = ranges(first, last), np.repeat(np.arange(len(starts_ns)), last - first)
    within = np.stack([pieces.start_ns, pieces.end_ns])[:, piece]
    borders = np.concatenate([starts_ns, ends_ns, np.clip(within, starts_ns[of], ends_ns[of]).reshape(-1)])
    interval = np.concatenate([np.arange(len(starts_ns))] * 2 + [of] * 2)
    order = np.lexsort((borders, interval))
    borders, interval = borders[order], interval[order]
    inside = (interval[1:] == interval[:-1]) & (borders[1:] > borders[:-1])
    begin, end, interval = borders[:-1][inside], borders[1:][inside], interval[:-1][inside]
    at = np.searchsorted(pieces.end_ns, begin, side="right")
    covered = np.append(pieces.start_ns, AFTER_ALL_NS)[at] <= begin
    owner = np.where(covered, np.append(pieces.owner, ABSENT)[at], ABSENT).astype(np.int64)
    short = (owner == ABSENT) & (end - begin <= RESOLUTION_NS)
    joins = interval[1:] == interval[:-1]
    before = np.append(ABSENT, np.where(joins, owner[:-1], ABSENT))[: len(owner)]
    after = np.append(np.where(joins, owner[1:], ABSENT), ABSENT)[: len(owner)]
    return interval, begin, end, np.where(short, np.where(before == ABSENT, after, before), owner)
