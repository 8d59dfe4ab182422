"""Slices of one rank's training thread. Each slice has one owner: the innermost open interval.

The innermost interval is the one that began last. Stalls in a checkpoint are the exception: the checkpoint keeps them,
because ranks that save wait only for each other's writing. A part of a step that is not training owns all time inside
it that is not a stall, and `part` names it for the stalls too. A slice lies in one step or outside all steps, and never
crosses the end of a pipeline window, so that sums over slices are exact sums of time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.attribution.terms import (
    ACTION_TERMS,
    EVALUATION,
    HOST_TERMS,
    NAMED_PREFIX,
    PHASE_TERMS,
    UNATTRIBUTED,
)
from traincope.arrays import Bools, Ints, chosen
from traincope.events import APART, Flag, Kind, Phase
from traincope.timeline import RankTimeline, evaluations
from traincope.timeline.intervals.painting import ABSENT, RUNS, owners

STALLED = -1
"""`code` of a slice that a stall owns."""

MAX_NAMES = 64
"""Names of parts that are terms of their own; the time in others is that of the phases inside."""
OWNERS = np.isin(np.arange(256), (Kind.PHASE, Kind.ACTION, Kind.STALL))
"""Kind -> True if its records own time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadSlices:
    """Consecutive slices of the training thread's time. All arrays have one entry per slice."""

    start_ns: Ints
    end_ns: Ints
    step: NDArray[np.int32]
    """Position among the rank's complete steps, -1 outside them."""
    owner: NDArray[np.int32]
    """Row of `intervals` that owns the slice, -1 if no interval is open."""
    code: NDArray[np.int8]
    """Position of its term in `terms`; STALLED if a stall owns it: the collective decides a stall's term."""
    part: NDArray[np.int8]
    """Position in `terms` of the part of the step around it that is not training, -1 if there is none."""
    inside: NDArray[np.int8]
    """`code` as it is without such parts."""
    terms: tuple[str, ...]
    """HOST_TERMS, and the terms of parts that the training names."""
    in_action: Bools
    """True inside a pipeline action of this rank."""
    intervals: NDArray[np.void]
    """The PHASE, ACTION and STALL records, sorted by start. Open records end at the rank's last instant."""

    @property
    def duration_ns(self) -> Ints:
        return self.end_ns - self.start_ns

    @property
    def term(self) -> NDArray[np.object_]:
        """Term of each slice; "" if a stall owns it."""
        return np.array([*self.terms, ""], dtype=object)[self.code]

    @property
    def stalled(self) -> Bools:
        """True if a stall owns the slice."""
        result: Bools = self.code == STALLED
        return result


def slice_thread(rank: RankTimeline, *, window_ends: Ints) -> ThreadSlices:
    """Slice the training thread at each begin and end of an interval, at step borders, and at `window_ends` (ns)."""
    intervals = _intervals(rank)
    starts = np.array([step.start_ns for step in rank.steps], dtype=np.int64)
    ends = np.array([step.end_ns for step in rank.steps], dtype=np.int64)
    begins, stops = intervals["start_ns"].copy(), intervals["end_ns"].copy()
    borders = np.sort(np.concatenate([begins, stops, starts, ends, window_ends]), kind=RUNS)
    borders = borders[np.diff(borders, prepend=borders[:1] - 1) != 0]
    begin, stop = borders[:-1], borders[1:]
    owner = owners(borders, begins, stops)
    code = np.append(_codes(rank, intervals), np.int8(HOST_TERMS.index(UNATTRIBUTED)))[owner]
    saves = (intervals["kind"] == Kind.PHASE) & (intervals["phase"] == Phase.CHECKPOINT_STALL)
    in_save = _covered(borders, begins[saves], stops[saves])
    code[in_save & (code == STALLED)] = HOST_TERMS.index(PHASE_TERMS[Phase.CHECKPOINT_STALL])
    code[evaluations(rank).cover(begin)] = HOST_TERMS.index(EVALUATION)
    part, terms = _parts(rank, intervals, borders)
    own = np.where((part >= 0) & (code != STALLED), part, code)
    step = np.searchsorted(starts, begin, side="right") - 1
    inside = (step >= 0) & (begin < np.append(ends, 0)[step])
    actions = (intervals["kind"] == Kind.ACTION) & (intervals["phase"] != Phase.EVALUATION)
    return ThreadSlices(
        start_ns=begin,
        end_ns=stop,
        step=np.where(inside, step, ABSENT).astype(np.int32),
        owner=owner,
        code=own,
        part=part,
        inside=code,
        terms=terms,
        in_action=_covered(borders, begins[actions], stops[actions]),
        intervals=intervals,
    )


def _parts(rank: RankTimeline, intervals: NDArray[np.void], borders: Ints) -> tuple[NDArray[np.int8], tuple[str, ...]]:
    """Return the innermost part around each slice, as a position in the terms, -1 for none; and the terms."""
    apart = intervals[(intervals["kind"] == Kind.PHASE) & np.isin(intervals["phase"], list(APART.values()))]
    named = apart["phase"] == Phase.NAMED
    numbers = np.unique(apart["name"][named]).tolist()[:MAX_NAMES]
    terms = (*HOST_TERMS, *(f"{NAMED_PREFIX}{rank.name(number)}" for number in numbers))
    codes = _codes(rank, apart)
    codes[named] = np.searchsorted(numbers, apart["name"][named]) + len(HOST_TERMS)
    apart, codes = apart[codes < len(terms)], codes[codes < len(terms)]
    owner = owners(borders, apart["start_ns"], apart["end_ns"])
    return np.append(codes, np.int8(ABSENT))[owner], terms


def _intervals(rank: RankTimeline) -> NDArray[np.void]:
    records = rank.main
    return rank.closed(chosen(records, OWNERS[records["kind"]] & (records["flags"] & Flag.DEVICE == 0)))


def _covered(borders: Ints, starts: Ints, ends: Ints) -> Bools:
    """Return, for each slice, whether it lies inside any of the intervals [start, end)."""
    change = np.zeros(len(borders), dtype=np.int64)
    np.add.at(change, np.searchsorted(borders, starts), 1)
    np.add.at(change, np.searchsorted(borders, ends), -1)
    return np.cumsum(change)[:-1] > 0


def _codes(rank: RankTimeline, intervals: NDArray[np.void]) -> NDArray[np.int8]:
    """Return the position of each interval's term in HOST_TERMS, STALLED for a stall."""
    code_of = {term: code for code, term in enumerate(HOST_TERMS)}
    unknown = code_of[UNATTRIBUTED]
    of_phase = np.full(256, unknown, dtype=np.int8)
    for phase, term in PHASE_TERMS.items():
        of_phase[phase] = code_of[term]
    of_name = [code_of[ACTION_TERMS[name]] if name in ACTION_TERMS else unknown for name in (*rank.names, "")]
    of_action = np.array(of_name, dtype=np.int8)[np.minimum(intervals["name"], len(rank.names))]
    codes = np.where(intervals["kind"] == Kind.ACTION, of_action, of_phase[intervals["phase"]])
    return np.where(intervals["kind"] == Kind.STALL, np.int8(STALLED), codes)
