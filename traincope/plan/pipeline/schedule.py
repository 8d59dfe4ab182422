"""Timetable of a pipeline in which each action runs as soon as its rank is free and its inputs exist."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincope.errors import UsageError
from traincope.plan.pipeline.actions import (
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
"""Duration in one step, or an array with one value per step. Steps with the same orders are replayed together."""

Key = tuple[str, int]
"""(kind of action, stage): the key of durations."""

DIGITS = 6
"""Digits of precision of the shortest of `Times`. Schedules are timed in whole ticks, so that sums are exact."""

MAX_TICKS = 2.0**62
"""Largest number of ticks that int64 holds."""

MAX_RANKS = 16
"""Most ranks of a timetable that is drawn."""


class PlannedAction(NamedTuple):
    """An action in an executable order of all actions."""

    rank: int
    action: Action
    inputs: tuple[tuple[int, tuple[int, int] | None], ...]
    """(position of the input in that order, its two stages if it comes from another rank)."""


class TimedAction(NamedTuple):
    """An action with its start and end, counted from the step's start."""

    action: Action
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """One step of a pipeline."""

    rows: Mapping[int, tuple[TimedAction, ...]]
    """Rank -> its actions in the order in which they began."""
    span: int
    """Ticks until the last action of all ranks ends."""
    ticks: float = 1.0
    """Ticks per unit of the caller's times."""

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


EVEN: Mapping[int, float] = MappingProxyType({})


def timetable(
    orders: Orders, times: Times = EQUAL, *, transfer: float = 0.0, work: Mapping[int, float] = EVEN
) -> Timetable:
    """Timetable in which each stage takes `times` and each message from rank to rank takes `transfer`.

    `work` has factors of the times of single stages; others take `times`. Raises UsageError if the orders cannot run,
    `transfer` is negative or infinite, or times differ too much to compare.
    """
    if not 0 <= transfer < math.inf:
        raise UsageError(f"transfer is {transfer:g}; it must be {'finite' if transfer > 0 else 'at least 0'}")
    ticks = _ticks(orders, times, transfer=transfer, work=work)
    durations = {
        (action.kind, action.stage): round(times.duration(action.kind) * work.get(action.stage, 1.0) * ticks)
        for order in orders.values()
        for action in order
    }
    stages = {stage for _, stage in durations}
    messages = {(stage, stage + direction): round(transfer * ticks) for stage in stages for direction in (1, -1)}
    ends = finish(orders, durations, messages)
    if ends is None:
        raise UsageError("these orders cannot run: each rank waits for an action that comes later on another rank")
    rows = {
        rank: tuple(TimedAction(a, int(ends[a]) - durations[a.kind, a.stage], int(ends[a])) for a in order)
        for rank, order in orders.items()
    }
    return Timetable(rows=rows, span=max((int(end) for end in ends.values()), default=0), ticks=ticks)


def _ticks(orders: Orders, times: Times, *, transfer: float, work: Mapping[int, float]) -> float:
    """Ticks per unit of the caller's times.

    DIGITS asks for a number of ticks; the span of all actions must fit into int64.
    """
    factors = [factor for factor in work.values() if factor > 0]
    shortest = min(times.forward, times.backward_input, times.backward_weight) * min([1.0, *factors])
    longest = max([1.0, *factors])
    span = sum(times.duration(action.kind) * longest + transfer for order in orders.values() for action in order)
    ticks = 10.0 ** max(DIGITS - math.floor(math.log10(shortest)), 0)
    if span * ticks > MAX_TICKS:
        ticks = 10.0 ** math.floor(math.log10(MAX_TICKS / span))
    if shortest * ticks < 1:
        raise UsageError(
            f"a time of {shortest:g} is too short to count in a step of {span:g}; give all times in one unit"
        )
    return ticks


def finish(
    orders: Orders, durations: Mapping[Key, Ns], transfers: Mapping[tuple[int, int], Ns]
) -> dict[Action, Ns] | None:
    """Action -> time of its end, if each action runs in its rank's order as soon as its inputs exist.

    F(s, m) needs F(s-1, m); B or I(s, m) needs F(s, m) and B or I(s+1, m); W needs its I. Messages from rank to rank
    arrive `transfers[source stage, destination stage]` later. None if the orders cannot run because an input is never
    produced.
    """
    plan = _plan(tuple((rank, tuple(order)) for rank, order in orders.items()))
    if plan is None:
        return None
    whole = all(isinstance(time, int) for times in (durations, transfers) for time in times.values())
    later: Callable[[Ns, Ns], Ns] = max if whole else np.maximum
    clock: dict[int, Ns] = dict.fromkeys(orders, 0)
    done: list[Ns] = []
    for rank, action, inputs in plan:
        start = clock[rank]
        for position, crossing in inputs:
            arrival = done[position] + (0 if crossing is None else transfers.get(crossing, 0))
            start = later(start, arrival)
        clock[rank] = start + durations[action.kind, action.stage]
        done.append(clock[rank])
    return {planned.action: end for planned, end in zip(plan, done, strict=True)}


@lru_cache(maxsize=256)
def _plan(orders: tuple[tuple[int, Order], ...]) -> tuple[PlannedAction, ...] | None:
    """All actions in an executable order, or None. Steps share orders, so few plans are computed."""
    rank_of = {action.stage: rank for rank, order in orders for action in order}
    present = {action for _, order in orders for action in order}
    position: dict[Action, int] = {}
    plan: list[PlannedAction] = []
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
                plan.append(PlannedAction(rank, action, inputs))
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
