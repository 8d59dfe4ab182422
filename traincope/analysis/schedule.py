"""Pipeline actions of one replica: how long they took, which schedule their order is, and a replay.

Durations are of one step, or arrays with one entry a step: steps that ran the same order are
replayed together, for a long run has a hundred thousand of them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.plan.actions import Action, Order, Orders
from traincope.plan.orders import SCHEDULES, Shape, orders
from traincope.plan.schedule import Key, Ns, finish

CUSTOM = "custom"
"""An order that is no known schedule's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What the ranks of one pipeline did in one step, or in several in the same order."""

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
        """None where its ranks do not all have as many stages."""
        chunks, rest = divmod(len(self.stages), len(self.orders))
        if rest or not chunks:
            return None
        return Shape(ranks=len(self.orders), microbatches=self.num_microbatches, chunks=chunks)

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


def replay(
    orders: Orders, durations: Mapping[Key, Ns], transfers: Mapping[tuple[int, int], Ns]
) -> dict[int, Ns] | None:
    """Idle ns of each rank when its actions run in their order, each as soon as its inputs are there.

    Idle is the makespan over all ranks less a rank's own work. None where the order cannot run: an
    input is never made.
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
    """The schedule that these orders are, or `custom`: told from what ran, not from the name of a class."""
    shape = replica.shape
    if shape is None:
        return CUSTOM
    ran = set(replica.orders.values())
    possible = (name for name, schedule in SCHEDULES.items() if schedule.refusal(shape) is None)
    return next((name for name in possible if set(orders(name, shape).values()) == ran), CUSTOM)
