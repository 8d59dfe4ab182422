"""Backwards after the reduction: their gradients are added to reduced ones, and reach the optimizer without one.

DDP reduces in a backward all that was added up before it. So with gradient accumulation, the last backward before the
optimizer has to reduce. Only steps in which an earlier backward reduced count, and only if it is the same in all of
them and on every rank.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.faults.anomalies.unreduced import LEAST, MANY_STEPS, is_of_ddp
from traincope.arrays import Ints
from traincope.events import OPEN, Flag, Kind, Phase
from traincope.timeline import RankTimeline, Timeline

NO_MODEL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LateBackwards:
    """Numbers of one rank, the same in all steps and on every rank."""

    num_steps: int
    """Steps of the optimizer that show it, on each rank."""
    backwards: int
    """Per step of the optimizer."""
    late: int
    """Those after the last one that reduced."""


def late_backwards(timeline: Timeline) -> LateBackwards | None:
    """Find backwards after the reduction; None if the last one reduces, or if the records do not show that."""
    if len(timeline.ranks) < 2 or not all(map(is_of_ddp, timeline.ranks)):
        return None
    found = set()
    num_steps = []
    for rank in timeline.ranks:
        backwards, late = _steps(rank)
        found |= {*zip(backwards.tolist(), late.tolist(), strict=True)}
        num_steps.append(len(late))
        if len(found) != 1 or not late[0] or len(late) < MANY_STEPS:
            return None
    ((of_step, after),) = found
    return LateBackwards(num_steps=min(num_steps), backwards=of_step, late=after)


def _steps(rank: RankTimeline) -> tuple[Ints, Ints]:
    """Number of backwards of each step of the optimizer in which one reduced, and of those after the last of these."""
    phases = rank.closed(rank.of_kind(Kind.PHASE))
    backwards, forwards = (outer(phases[phases["phase"] == phase]) for phase in (Phase.BACKWARD, Phase.FORWARD))
    updates = np.sort(phases["start_ns"][phases["phase"] == Phase.OPTIMIZER])
    backwards = backwards[backwards["start_ns"] < updates.max(initial=0)]
    step = np.searchsorted(updates, backwards["start_ns"])
    num_backwards = np.bincount(step, minlength=len(updates))
    reduced = _reduced_bytes(rank, backwards, updates)
    total = np.zeros(len(updates), dtype=np.int64)
    np.add.at(total, step, reduced)
    reducing = np.flatnonzero(reduced > LEAST * total[step])
    last_reducing = np.full(len(updates), -1, dtype=np.int64)
    np.maximum.at(last_reducing, step[reducing], reducing)
    steps = np.flatnonzero(last_reducing >= 0)
    last, last_reducing = np.cumsum(num_backwards)[steps] - 1, last_reducing[steps]
    model = _models(forwards, backwards)
    same = (model[last] == model[last_reducing]) & (model[last] != NO_MODEL)
    return num_backwards[steps], np.where(same, last - last_reducing, 0)


def _reduced_bytes(rank: RankTimeline, backwards: NDArray[np.void], updates: Ints) -> Ints:
    """Bytes that were reduced in each backward. What is reduced by hand before the optimizer counts as the last one."""
    sums = np.zeros(len(backwards), dtype=np.int64)
    if not len(backwards):
        return sums
    step = np.searchsorted(updates, backwards["start_ns"])
    is_last = np.append(step[1:] != step[:-1], True)
    for records in rank.threads.values():
        sent = records[(records["kind"] == Kind.COLLECTIVE) & (records["flags"] & Flag.POINT_TO_POINT == 0)]
        times = sent["start_ns"]
        at = np.searchsorted(backwards["start_ns"], times, side="right") - 1
        inside = times < backwards["end_ns"][at]
        by_hand = is_last[at] & (np.searchsorted(updates, times) == step[at])
        counted = (at >= 0) & (inside | by_hand)
        np.add.at(sums, at[counted], sent["value"][counted])
    return sums


def outer(phases: NDArray[np.void]) -> NDArray[np.void]:
    """Those that no other one of them contains, in order."""
    if not len(phases):
        return phases
    in_order = phases[np.lexsort((-phases["end_ns"], phases["start_ns"]))]
    ended = np.maximum.accumulate(in_order["end_ns"])
    outer: NDArray[np.void] = in_order[np.append(True, in_order["start_ns"][1:] >= ended[:-1])]
    return outer


def _models(forwards: NDArray[np.void], backwards: NDArray[np.void]) -> Ints:
    """Name of the first forward between the backward before and each one; NO_MODEL without."""
    since = np.append(0, backwards["end_ns"][:-1]) if len(backwards) else backwards["end_ns"]
    at = np.searchsorted(forwards["start_ns"], since)
    starts = np.append(forwards["start_ns"], OPEN)[at]
    names = np.append(forwards["name"].astype(np.int64), NO_MODEL)[at]
    model: Ints = np.where((starts != OPEN) & (starts < backwards["start_ns"]), names, NO_MODEL)
    return model
