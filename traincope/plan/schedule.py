"""When the actions of a pipeline run, if each runs as soon as its rank is free and its inputs are there."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.errors import UsageError
from traincope.plan.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    EQUAL,
    FORWARD,
    Action,
    Order,
    Orders,
    Times,
)

Ns = int | NDArray[np.int64]
"""Of one step, or of each of several that ran the same orders: they are replayed together."""

Key = tuple[str, int]
"""(kind of action, stage): what durations are told by."""

DIGITS = 6
"""To which the shortest of `Times` counts: schedules are timed in whole ticks, so that sums are exact."""

MOST_TICKS = 2.0**62
"""That int64 has room for."""


class Planned(NamedTuple):
    """An action in an order in which all of them can run, its inputs given by position in it."""

    rank: int
    action: Action
    inputs: tuple[tuple[int, tuple[int, int] | None], ...]
    """(position, the two stages if it comes from another rank)."""


class Ran(NamedTuple):
    """An action and when it ran, from the step's start."""

    action: Action
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """One step of a pipeline."""

    rows: Mapping[int, tuple[Ran, ...]]
    """Rank -> its actions as they began."""
    span: int
    """Until the last action of all ranks ends; times and this in one unit."""
    ticks: float = 1.0
    """How many of that make one of the caller's."""

    @property
    def idle_ratio(self) -> float:
        """Idle share of total time, mean over the ranks."""
        return self._idle / (self._idle + self._work) if self.span else 0.0

    @property
    def idle_over_ideal(self) -> float:
        """Idle over ideal (bubble-free) time."""
        return self._idle / self._work if self.span else 0.0

    @property
    def _work(self) -> int:
        return sum(ran.end - ran.start for row in self.rows.values() for ran in row)

    @property
    def _idle(self) -> int:
        return self.span * len(self.rows) - self._work


def timetable(orders: Orders, times: Times = EQUAL, *, transfer: float = 0.0) -> Timetable:
    """Every stage takes `times`, every message between ranks `transfer`; in ticks.

    Raises UsageError where the orders cannot run, `transfer` is negative or endless, or times cannot be compared.
    """
    if not 0 <= transfer < math.inf:
        raise UsageError(f"transfer = {transfer:g} must be {'finite' if transfer > 0 else 'at least 0'}")
    ticks = _ticks(orders, times, transfer=transfer)
    durations = {
        (action.kind, action.stage): round(times.of(action.kind) * ticks)
        for order in orders.values()
        for action in order
    }
    stages = {stage for _, stage in durations}
    messages = {(stage, stage + way): round(transfer * ticks) for stage in stages for way in (1, -1)}
    ends = finish(orders, durations, messages)
    if ends is None:
        raise UsageError("these orders cannot run: each waits for what another does only later")
    rows = {
        rank: tuple(Ran(a, int(ends[a]) - durations[a.kind, a.stage], int(ends[a])) for a in order)
        for rank, order in orders.items()
    }
    return Timetable(rows=rows, span=max((int(end) for end in ends.values()), default=0), ticks=ticks)


def _ticks(orders: Orders, times: Times, *, transfer: float) -> float:
    """As many in one of the caller's units as DIGITS asks for, but no more than a span of all actions has room for."""
    shortest = min(times.forward, times.backward_input, times.backward_weight)
    span = sum(times.of(action.kind) + transfer for order in orders.values() for action in order)
    ticks = 10.0 ** max(DIGITS - math.floor(math.log10(shortest)), 0)
    if span * ticks > MOST_TICKS:
        ticks = 10.0 ** math.floor(math.log10(MOST_TICKS / span))
    if shortest * ticks < 1:
        raise UsageError(f"a time of {shortest:g} is nothing in a step of {span:g}; are all in one unit?")
    return ticks


def finish(
    orders: Orders, durations: Mapping[Key, Ns], transfers: Mapping[tuple[int, int], Ns]
) -> dict[Action, Ns] | None:
    """When each action ends, its rank's actions in their order, each as soon as its inputs are there.

    F(s, m) needs F(s-1, m), B or I(s, m) needs F(s, m) and B or I(s+1, m), W needs its I. What
    crosses ranks arrives `transfers[source stage, destination stage]` later. None where the orders
    cannot run: an input is never made.
    """
    plan = _plan(tuple((rank, tuple(order)) for rank, order in orders.items()))
    if plan is None:
        return None
    clock: dict[int, Ns] = dict.fromkeys(orders, 0)
    done: list[Ns] = []
    for rank, action, inputs in plan:
        start = clock[rank]
        for position, crossing in inputs:
            arrival = done[position] + (0 if crossing is None else transfers.get(crossing, 0))
            start = np.maximum(start, arrival)
        clock[rank] = start + durations[action.kind, action.stage]
        done.append(clock[rank])
    return {planned.action: end for planned, end in zip(plan, done, strict=True)}


@lru_cache(maxsize=256)
def _plan(orders: tuple[tuple[int, Order], ...]) -> tuple[Planned, ...] | None:
    """All actions in an order in which they can run, or None. Steps share orders, so few are planned."""
    rank_of = {action.stage: rank for rank, order in orders for action in order}
    present = {action for _, order in orders for action in order}
    position: dict[Action, int] = {}
    plan: list[Planned] = []
    waiting = {rank: list(reversed(order)) for rank, order in orders}
    moved = True
    while moved:
        moved = False
        for rank, rest in waiting.items():
            while rest and all(needed in position for needed in _needs(rest[-1]) if needed in present):
                action = rest.pop()
                inputs = tuple(
                    (position[needed], _crossing(needed, action, rank_of))
                    for needed in _needs(action)
                    if needed in present
                )
                position[action] = len(plan)
                plan.append(Planned(rank, action, inputs))
                moved = True
    return None if any(waiting.values()) else tuple(plan)


def _crossing(needed: Action, action: Action, rank_of: Mapping[int, int]) -> tuple[int, int] | None:
    return None if rank_of[needed.stage] == rank_of[action.stage] else (needed.stage, action.stage)


def _needs(action: Action) -> tuple[Action, ...]:
    stage, microbatch = action.stage, action.microbatch
    if action.kind == FORWARD:
        return (Action(FORWARD, stage - 1, microbatch),)
    if action.kind == BACKWARD_WEIGHT:
        return (Action(BACKWARD_INPUT, stage, microbatch),)
    later = (Action(kind, stage + 1, microbatch) for kind in (BACKWARD, BACKWARD_INPUT))
    return (Action(FORWARD, stage, microbatch), *later)
