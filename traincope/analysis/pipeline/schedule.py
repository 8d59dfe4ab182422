"""Pipeline actions of one replica: their durations, recognition of their schedule, and replay.

Durations are those of one step, or arrays with one entry per step: steps that ran the same order are replayed
together, because a long run has a hundred thousand of them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.plan.pipeline.actions import Action, Order, Orders
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders
from traincope.plan.pipeline.schedule import Key, Ns, finish
from traincope.timeline.intervals.medians import halfway

CUSTOM = "custom"
"""Name of an order that no known schedule has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """Actions of the ranks of one pipeline in one step, or in several steps of the same order."""

    orders: Mapping[int, Order]
    """Rank -> its actions in the order they began."""
    durations_ns: Mapping[Action, Ns]

    @property
    def stages(self) -> tuple[int, ...]:
        return tuple(sorted({action.stage for order in self.orders.values() for action in order}))

    @property
    def num_microbatches(self) -> int:
        return len({action.microbatch for order in self.orders.values() for action in order})

    @property
    def shape(self) -> Shape | None:
        """Shape of the schedule; None if its ranks differ in their number of stages."""
        chunks, rest = divmod(len(self.stages), len(self.orders))
        if rest or not chunks:
            return None
        return Shape(ranks=len(self.orders), microbatches=self.num_microbatches, chunks=chunks)

    def medians(self) -> dict[Key, Ns]:
        """Return the median duration of each stage's actions by kind, in ns, without waits for receives."""
        by_key: dict[Key, list[Ns]] = defaultdict(list)
        for action, duration in self.durations_ns.items():
            by_key[action.kind, action.stage].append(duration)
        return {key: _median(durations) for key, durations in by_key.items()}


def _median(values: Sequence[Ns]) -> NDArray[np.int64]:
    """Return the median of each step, in whole ns."""
    ordered = np.sort(np.stack(values), axis=0)
    return halfway(ordered[(len(values) - 1) // 2], ordered[len(values) // 2])


def mean_over_stages(medians: Mapping[Key, Ns]) -> dict[Key, Ns]:
    """Give every stage the mean over the stages, by kind."""
    by_kind: dict[str, list[Ns]] = defaultdict(list)
    for (kind, _), duration in medians.items():
        by_kind[kind].append(duration)
    means = {kind: np.rint(sum(values) / len(values)).astype(np.int64) for kind, values in by_kind.items()}
    return {(kind, stage): means[kind] for kind, stage in medians}


def replay(
    orders: Orders, durations: Mapping[Key, Ns], transfers: Mapping[tuple[int, int], Ns]
) -> dict[int, Ns] | None:
    """Compute the idle ns of each rank if its actions run in their order, each as soon as its inputs exist.

    Idle time is the makespan over all ranks minus a rank's own work. None if the order cannot run because an input
    is never produced.
    """
    ends = finish(orders, durations, transfers)
    if ends is None:
        return None
    makespan: Ns = 0
    for order in orders.values():
        if order:
            makespan = np.maximum(makespan, ends[order[-1]])
    return {rank: makespan - sum(durations[a.kind, a.stage] for a in order) for rank, order in orders.items()}


def recognise(replica: Replica) -> str:
    """Recognise the schedule by the recorded orders, not by the name of a class; `custom` if none matches."""
    shape = replica.shape
    if shape is None:
        return CUSTOM
    ran = set(replica.orders.values())
    possible = (name for name, schedule in SCHEDULES.items() if schedule.refusal(shape) is None)
    return next((name for name in possible if set(orders(name, shape).values()) == ran), CUSTOM)
