"""Pipeline actions of one replica: their order, which schedule that is, and a replay.

Durations are of one step, or arrays with one entry a step: steps that ran the same order are
replayed together, for a long run has a hundred thousand of them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ns = int | NDArray[np.int64]
"""Of one step, or of each of several."""

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = "F", "B", "I", "W"


class Action(NamedTuple):
    """One F, B, I or W of a stage on a microbatch. A tuple, for a long run has millions."""

    kind: str
    stage: int
    microbatch: int


Key = tuple[str, int]
"""(kind of action, stage): what durations and transfers are told by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What the ranks of one pipeline did in one step, or in several in the same order."""

    orders: Mapping[int, tuple[Action, ...]]
    """Rank -> its actions in the order they began."""
    durations_ns: Mapping[Action, Ns]

    @property
    def stages(self) -> tuple[int, ...]:
        return tuple(sorted({action.stage for order in self.orders.values() for action in order}))

    @property
    def num_microbatches(self) -> int:
        return len({action.microbatch for order in self.orders.values() for action in order})

    def medians(self) -> dict[Key, Ns]:
        """Median duration of each stage's actions of each kind, ns; receive waits are not in them."""
        seen: dict[Key, list[Ns]] = defaultdict(list)
        for action, duration in self.durations_ns.items():
            seen[action.kind, action.stage].append(duration)
        return {key: _median(durations) for key, durations in seen.items()}


def _median(values: Sequence[Ns]) -> NDArray[np.int64]:
    """Step by step, in whole ns."""
    ordered = np.sort(np.stack(values), axis=0)
    return halfway(ordered[(len(values) - 1) // 2], ordered[len(values) // 2])


def halfway(low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
    """The mean of two, in whole ns, halves to even."""
    return np.rint((low + high) / 2).astype(np.int64)


def mean_over_stages(medians: Mapping[Key, Ns]) -> dict[Key, Ns]:
    """Every stage given the mean over the stages, kind by kind."""
    by_kind: dict[str, list[Ns]] = defaultdict(list)
    for (kind, _), duration in medians.items():
        by_kind[kind].append(duration)
    means = {kind: np.rint(sum(values) / len(values)).astype(np.int64) for kind, values in by_kind.items()}
    return {(kind, stage): means[kind] for kind, stage in medians}


class Planned(NamedTuple):
    """An action in an order in which all of them can run, its inputs given by position in it."""

    rank: int
    action: Action
    inputs: tuple[tuple[int, tuple[int, int] | None], ...]
    """(position, the two stages if it comes from another rank)."""


def replay(
    orders: Mapping[int, Sequence[Action]], durations: Mapping[Key, Ns], transfers: Mapping[tuple[int, int], Ns]
) -> dict[int, Ns] | None:
    """Idle ns of each rank when its actions run in their order, each as soon as its inputs are there.

    F(s, m) needs F(s-1, m), B or I(s, m) needs F(s, m) and B or I(s+1, m), W needs its I. What
    crosses ranks arrives `transfers[source stage, destination stage]` ns later. Idle is the
    makespan over all ranks less a rank's own work. None where the order cannot run: an input is
    never made.
    """
    plan = _plan(tuple((rank, tuple(order)) for rank, order in orders.items()))
    if plan is None:
        return None
    clock: dict[int, Ns] = dict.fromkeys(orders, 0)
    work: dict[int, Ns] = dict.fromkeys(orders, 0)
    done: list[Ns] = []
    for rank, action, inputs in plan:
        start = clock[rank]
        for position, crossing in inputs:
            arrival = done[position] + (0 if crossing is None else transfers.get(crossing, 0))
            start = np.maximum(start, arrival)
        duration = durations[action.kind, action.stage]
        clock[rank] = start + duration
        work[rank] = work[rank] + duration
        done.append(clock[rank])
    makespan: Ns = 0
    for end in clock.values():
        makespan = np.maximum(makespan, end)
    return {rank: makespan - own for rank, own in work.items()}


@lru_cache(maxsize=256)
def _plan(orders: tuple[tuple[int, tuple[Action, ...]], ...]) -> tuple[Planned, ...] | None:
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


def recognise(replica: Replica) -> str:
    """The schedule that these orders are: gpipe, 1f1b, or `custom`.

    Told from what ran, not from the name of a class. One stage a rank in order; anything else that
    has a formula will be recognised by its own rule.
    """
    by_stage = {order[0].stage: order for order in replica.orders.values() if order}
    stages, microbatches = len(replica.stages), replica.num_microbatches
    if len(by_stage) != stages:
        return "custom"
    for name, expected in (("gpipe", _gpipe), ("1f1b", _1f1b)):
        wanted = {stage: expected(stage, stages=stages, microbatches=microbatches) for stage in replica.stages}
        if all([(a.kind, a.microbatch) for a in by_stage[stage]] == wanted[stage] for stage in replica.stages):
            return name
    return "custom"


def _gpipe(stage: int, *, stages: int, microbatches: int) -> list[tuple[str, int]]:
    del stage, stages
    return [(kind, m) for kind in (FORWARD, BACKWARD) for m in range(microbatches)]


def _1f1b(stage: int, *, stages: int, microbatches: int) -> list[tuple[str, int]]:
    warm_up = min(stages - stage, microbatches)
    order = [(FORWARD, m) for m in range(warm_up)]
    for m in range(microbatches):
        order.append((BACKWARD, m))
        if warm_up + m < microbatches:
            order.append((FORWARD, warm_up + m))
    return order
