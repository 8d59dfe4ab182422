"""One rank's training thread, cut into pieces that each have one owner: the innermost open interval.

Innermost is the interval begun last among those open. A piece lies in one step or in none, and
never crosses a pipeline window's end, so that sums over pieces are exact sums of time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.terms import ACTION_TERMS, PHASE_TERMS, UNATTRIBUTED
from traincope.events import Flag, Kind, Phase
from traincope.timeline import RankTimeline

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NOBODY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Consecutive pieces of the training thread's time; all arrays have one entry a piece."""

    start_ns: Ints
    end_ns: Ints
    step: Ints
    """Position among the rank's complete steps, -1 outside them."""
    owner: Ints
    """Row of `intervals` that owns the piece, -1: nothing was open."""
    in_action: Bools
    """Inside a pipeline action of this rank."""
    intervals: NDArray[np.void]
    """The PHASE, ACTION and STALL records, sorted by start, open ones ended at the rank's last instant."""
    terms: NDArray[np.object_]
    """Ledger term of each interval; "" for a STALL, whose term depends on its collective."""

    @property
    def duration_ns(self) -> Ints:
        return self.end_ns - self.start_ns

    @property
    def term(self) -> NDArray[np.object_]:
        """Term of each piece; "" where a stall owns it."""
        return np.append(self.terms, UNATTRIBUTED)[self.owner]

    @property
    def stalled(self) -> Bools:
        """Whether a stall owns the piece."""
        kinds = np.append(self.intervals["kind"], 0)
        result: Bools = kinds[self.owner] == Kind.STALL
        return result


def cut(rank: RankTimeline, *, window_ends: Ints) -> Pieces:
    """Cut the training thread at every begin and end, at step borders, and at `window_ends` (ns)."""
    intervals = _intervals(rank)
    starts = np.array([step.start_ns for step in rank.steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in rank.steps], dtype=np.int64)
    borders = np.sort(np.concatenate([intervals["start_ns"], intervals["end_ns"], starts, ends, window_ends]))
    borders = borders[np.diff(borders, prepend=borders[:1] - 1) != 0]
    begin, stop = borders[:-1], borders[1:]
    owner = _paint(borders, intervals)
    evaluation = intervals["phase"] == Phase.EVALUATION
    owner = np.where(_covered(borders, intervals[evaluation]), _paint(borders, intervals, only=evaluation), owner)
    step = np.searchsorted(starts, begin, side="right") - 1
    inside = (step >= 0) & (begin < np.append(ends, 0)[step])
    return Pieces(
        start_ns=begin,
        end_ns=stop,
        step=np.where(inside, step, NOBODY),
        owner=owner,
        in_action=_covered(borders, intervals[(intervals["kind"] == Kind.ACTION) & ~evaluation]),
        intervals=intervals,
        terms=_terms(rank, intervals),
    )


def _intervals(rank: RankTimeline) -> NDArray[np.void]:
    records = rank.of_kind(Kind.PHASE, Kind.ACTION, Kind.STALL)
    on_host = records[records["flags"] & Flag.DEVICE == 0]
    return rank.closed(on_host)


def _paint(borders: Ints, intervals: NDArray[np.void], *, only: Bools | None = None) -> Ints:
    """Row of the interval that owns each piece: of those that cover it the last one, for rows are in order of begin.

    Painted level by level of nesting, where intervals hardly overlap and are few per piece.
    """
    owner = np.full(max(len(borders) - 1, 0), NOBODY, dtype=np.int64)
    rows = np.flatnonzero(intervals["end_ns"] > intervals["start_ns"] if only is None else only)
    starts, ends = intervals["start_ns"][rows], intervals["end_ns"][rows]
    first, last = np.searchsorted(borders, starts), np.searchsorted(borders, ends)
    depth = np.arange(len(rows)) - np.searchsorted(np.sort(ends), starts, side="right")
    for level in np.unique(depth):
        chosen = depth == level
        pieces, row = _ranges(first[chosen], last[chosen]), np.repeat(rows[chosen], (last - first)[chosen])
        owner[pieces] = np.maximum(owner[pieces], row)
    return owner


def _ranges(first: Ints, last: Ints) -> Ints:
    """All integers of each [first, last), one range after the other."""
    counts = last - first
    before = np.cumsum(counts) - counts
    ranges: Ints = np.arange(counts.sum()) + np.repeat(first - before, counts)
    return ranges


def _covered(borders: Ints, intervals: NDArray[np.void]) -> Bools:
    """Whether each piece lies inside any of the intervals."""
    change = np.zeros(len(borders), dtype=np.int64)
    np.add.at(change, np.searchsorted(borders, intervals["start_ns"]), 1)
    np.add.at(change, np.searchsorted(borders, intervals["end_ns"]), -1)
    return np.cumsum(change)[:-1] > 0


def _terms(rank: RankTimeline, intervals: NDArray[np.void]) -> NDArray[np.object_]:
    terms = np.full(len(intervals), "", dtype=object)
    for phase, term in PHASE_TERMS.items():
        terms[(intervals["kind"] == Kind.PHASE) & (intervals["phase"] == phase)] = term
    for action, term in ACTION_TERMS.items():
        numbers = [number for number, name in enumerate(rank.names) if name == action]
        terms[(intervals["kind"] == Kind.ACTION) & np.isin(intervals["name"], numbers)] = term
    terms[intervals["phase"] == Phase.EVALUATION] = PHASE_TERMS[Phase.EVALUATION]
    unknown = (terms == "") & (intervals["kind"] != Kind.STALL)
    terms[unknown] = UNATTRIBUTED
    return terms
