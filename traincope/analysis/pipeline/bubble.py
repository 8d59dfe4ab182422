"""Pipeline bubble: idle time of a stage, split by replays of the recorded order.

The pool is the stage's time in a step's window outside its own actions and outside all other terms of the ledger.
Three replays split it. With the mean of the stages' median durations and free transfers, only the schedule causes idle
time. With each stage's own medians, the additional idle time is imbalance. With measured transfers, the addition is
exposed transfer. The rest of the recorded pool is jitter. The parts are differences of counterfactuals and can be
negative; their sum is exactly the pool. A rank may have several stages, and a stage may run I and W instead of B: a
rank is idle while none of its actions runs, and each kind of action has its own median.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from traincope.analysis.attribution.transfers import Transfers, received
from traincope.analysis.pipeline.replicas import RESOLUTION_RATIO, ReplicaSteps, by_number
from traincope.analysis.pipeline.schedule import CUSTOM, Replica, mean_over_stages, recognise, replay
from traincope.arrays import Bools, Ints
from traincope.plan.pipeline.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, Times
from traincope.plan.pipeline.bubble import bubble_ratio
from traincope.plan.pipeline.orders import Shape
from traincope.plan.pipeline.schedule import MAX_RANKS, Key, Ns, TimedAction, Timetable
from traincope.timeline import Instances
from traincope.timeline.device.collectives import SEND_RECV
from traincope.timeline.intervals.medians import medians
from traincope.topology import PIPELINE_AXIS

NO_MESSAGE = -1
"""Transfer ns of a step without a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Idle time of one rank by the three replays. Arrays have one entry per step."""

    numbers: Ints
    """Step numbers."""
    schedule_ns: Ints
    imbalance_ns: Ints
    transfer_ns: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBubble:
    """Bubble of one stage, summed over its ranks and the counted steps."""

    stage: int
    others: tuple[int, ...] = ()
    """Further stages of the same ranks. They idle together, so they share this entry."""
    slowest: int
    """The one of these stages that computes longest."""
    ranks: tuple[int, ...]
    schedule_ns: int
    imbalance_ns: int
    jitter_ns: int
    wall_ns: int
    """Wall time of the steps that could be replayed."""
    work_ns: int = 0
    """Usual work for a microbatch, in all its actions of all these stages."""

    @property
    def fraction_ratio(self) -> float:
        """Bubble of the stage: (schedule + imbalance + jitter) / wall."""
        return (self.schedule_ns + self.imbalance_ns + self.jitter_ns) / self.wall_ns if self.wall_ns else 0.0


MAX_ACTIONS = 256
"""Most actions of a rank in the rows of a timetable. No drawing has room for more."""
KINDS = (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimetableRow:
    """Actions of one rank in a step, in order. Times are ns from the step's begin."""

    rank: int
    actions: tuple[TimedAction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubble:
    """Bubble of a run's pipeline."""

    schedule: str
    """Name in `plan.orders.SCHEDULES`, recognised from the recorded order, or `custom`."""
    num_stages: int
    num_microbatches: int
    chunks: int = 1
    """Stages per rank."""
    stages: tuple[StageBubble, ...]
    theory_ratio: float | None
    """Idle share of total time by the schedule's formula; None without a formula."""
    replay_ratio: float | None
    """Idle share by a replay of the recorded order with equal stages and free transfers."""
    one_clock: bool = True
    """True if the stages' times compare: the error between their hosts' clocks is negligible relative to a step."""
    step: int | None = None
    """Step of median length among those that ran this order."""
    timetable: Timetable | None = None
    """Actions of one replica in that step, ns from its begin; None if `one_clock` is false."""

    @property
    def rows(self) -> tuple[TimetableRow, ...] | None:
        """Actions of one replica in that step; None for over 16 ranks or 256 actions a rank, or without one clock."""
        rows = {} if self.timetable is None else self.timetable.rows
        if not rows or len(rows) > MAX_RANKS or max(map(len, rows.values())) > MAX_ACTIONS:
            return None
        if any(ran.action.kind not in KINDS for row in rows.values() for ran in row):
            return None  # an action's name was lost
        return tuple(TimetableRow(rank=rank, actions=row) for rank, row in rows.items())

    @property
    def shape(self) -> Shape:
        return Shape(ranks=self.num_stages // self.chunks, microbatches=self.num_microbatches, chunks=self.chunks)

    @property
    def parts(self) -> dict[str, float]:
        """Schedule, imbalance and jitter as shares of the replayed steps' time, over all ranks."""
        wall_ns = sum(stage.wall_ns for stage in self.stages)
        sums = {
            "schedule": sum(stage.schedule_ns for stage in self.stages),
            "imbalance": sum(stage.imbalance_ns for stage in self.stages),
            "jitter": sum(stage.jitter_ns for stage in self.stages),
        }
        return {name: ns / wall_ns if wall_ns else 0.0 for name, ns in sums.items()}

    @property
    def fraction_ratio(self) -> float:
        """The headline number: the mean over the stages."""
        return sum(stage.fraction_ratio for stage in self.stages) / len(self.stages)


def replay_idle(steps: ReplicaSteps, transfers: Mapping[tuple[int, int], Ns]) -> dict[int, Idle]:
    """Replay the steps: rank -> idle time; empty if the recorded order cannot be replayed."""
    replica = steps.replica
    durations = replica.medians()
    runs = (
        replay(replica.orders, mean_over_stages(durations), {}),
        replay(replica.orders, durations, {}),
        replay(replica.orders, durations, transfers),
    )
    even, uneven, sent = runs
    if even is None or uneven is None or sent is None:
        return {}
    shape = np.zeros_like(steps.numbers)
    return {
        rank: Idle(
            numbers=steps.numbers,
            schedule_ns=shape + even[rank],
            imbalance_ns=shape + uneven[rank] - even[rank],
            transfer_ns=shape + sent[rank] - uneven[rank],
        )
        for rank in even
    }


def measured_transfers(instances: Instances, wire: Transfers) -> dict[tuple[int, int], tuple[Ints, Ints]]:
    """Return (source rank, destination rank) -> (step numbers, median transfer ns in each) on the pipeline's axis.

    A GPU's kernel that sends and receives between two ranks counts for both directions.
    """
    pipeline = np.array([axis == PIPELINE_AXIS for axis in instances.axes])
    exchanges = _exchanged(instances)
    chosen = np.flatnonzero((received(instances) | exchanges) & pipeline[instances.parts.axis_code])
    senders = np.array([channel.source for channel in instances.channels], dtype=np.int64)
    destination = instances.parts.rank[chosen].astype(np.int64)
    both = np.bincount(instances.number, weights=instances.parts.rank, minlength=len(instances)).astype(np.int64)
    of = instances.number[chosen]
    source = np.where(exchanges[chosen], both[of] - destination, senders[instances.channel[of]])
    order = np.lexsort((destination, source))
    source, destination, of = source[order], destination[order], of[order]
    step, ns = instances.parts.step[chosen[order]].astype(np.int64), wire.ns[of]
    changes = (source[1:] != source[:-1]) | (destination[1:] != destination[:-1])
    first = np.flatnonzero(np.append(True, changes)[: len(order)])
    pairs = zip(source[first].tolist(), destination[first].tolist(), strict=True)
    bounds = pairwise([*first.tolist(), len(order)])
    return {pair: medians(step[begin:end], ns[begin:end]) for pair, (begin, end) in zip(pairs, bounds, strict=True)}


def _exchanged(instances: Instances) -> Bools:
    """Mark the parts of matched kernels that exchange messages between two ranks."""
    named = np.array([name == SEND_RECV for name in instances.operations])
    direct = np.array([channel.direct for channel in instances.channels], dtype=bool)[instances.channel]
    pair = instances.complete & ~direct & (np.bincount(instances.number, minlength=len(instances)) == 2)
    chosen: Bools = named[instances.parts.operation_code] & pair[instances.number]
    return chosen


def stage_transfers(
    steps: ReplicaSteps, measured: Mapping[tuple[int, int], tuple[Ints, Ints]]
) -> dict[tuple[int, int], Ns]:
    """Return (source stage, destination stage) -> transfer ns in each of the steps, 0 if not measured."""
    stages = _stages_of_ranks(steps.replica)
    return {
        (source_stage, destination_stage): by_number(steps.numbers, *measured[source, destination], missing=0)
        for source, source_stages in stages.items()
        for destination, destination_stages in stages.items()
        if (source, destination) in measured
        for source_stage in source_stages
        for destination_stage in destination_stages
    }


def unclear_steps(steps: ReplicaSteps, instances: Instances, wire: Transfers) -> frozenset[int]:
    """Return the steps whose transfers marks on compute streams do not show well enough to split the idle time.

    A message between two ranks has none that is similar and whose begin and end show, and it matters: without the time
    that it can take at most, the replay changes by more than RESOLUTION_RATIO of the step.
    """
    most = measured_transfers(instances, wire)
    least = measured_transfers(instances, replace(wire, ns=np.where(wire.measured, wire.ns, 0)))
    orders, durations = steps.replica.orders, steps.replica.medians()
    longest, shortest = (replay(orders, durations, stage_transfers(steps, each)) for each in (most, least))
    if longest is None or shortest is None:
        return frozenset()
    unclear = np.zeros(len(steps.numbers), dtype=bool)
    for link in _links(steps.replica):
        known, ns = most.get(link, (steps.numbers[:0], steps.numbers[:0]))
        unclear |= by_number(steps.numbers, known, ns, missing=NO_MESSAGE) == NO_MESSAGE
    for rank, order in orders.items():
        work_ns = sum(durations[action.kind, action.stage] for action in order)
        unclear |= longest[rank] - shortest[rank] > RESOLUTION_RATIO * (work_ns + longest[rank])
    return frozenset(steps.numbers[unclear].tolist())


def _links(replica: Replica) -> set[tuple[int, int]]:
    """Return the pairs (source rank, destination rank) between which the replica's order needs messages."""
    rank_of = {action.stage: rank for rank, order in replica.orders.items() for action in order}
    sources = {FORWARD: -1, BACKWARD: 1, BACKWARD_INPUT: 1}
    needed = {
        (rank_of.get(action.stage + sources[action.kind], rank), rank)
        for rank, order in replica.orders.items()
        for action in order
        if action.kind in sources
    }
    return {(source, destination) for source, destination in needed if source != destination}


def usual_work_ns(steps: Sequence[ReplicaSteps], stage: int) -> int:
    """Sum the medians, over all steps, of the stage's kinds of action: its usual work per microbatch, in ns."""
    by_kind: dict[str, list[Ints]] = defaultdict(list)
    for group in steps:
        for action, ns in group.replica.durations_ns.items():
            if action.stage == stage:
                by_kind[action.kind].append(np.atleast_1d(ns))
    return round(sum(float(np.median(np.concatenate(durations))) for durations in by_kind.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """Expected idle time of a recorded order."""

    schedule: str
    num_microbatches: int
    """Microbatches of one round."""
    chunks: int
    formula_ratio: float | None
    """Idle share of total time by the schedule's formula."""
    replay_ratio: float | None
    """Idle share by a replay with equal stages and free transfers."""


def theory(replica: Replica) -> Theory:
    """Compute the theory of a step: of all its actions if they form a known schedule, otherwise of its first round."""
    first = replica if recognise(replica) != CUSTOM else first_round(replica)
    shape, schedule = first.shape, recognise(first)
    medians = mean_over_stages(first.medians())
    return Theory(
        schedule=schedule,
        num_microbatches=first.num_microbatches,
        chunks=1 if shape is None else shape.chunks,
        formula_ratio=None if shape is None or schedule == CUSTOM else _by_formula(schedule, shape, medians),
        replay_ratio=_replayed_ratio(first, medians),
    )


def _by_formula(schedule: str, shape: Shape, medians: Mapping[Key, Ns]) -> float | None:
    """Evaluate the formula with the run's mean times, or with equal times if the formula requires them."""
    durations = {kind: int(duration) for (kind, _), duration in medians.items()}
    backward = durations.get(BACKWARD, 0)
    times = Times(
        forward=max(durations.get(FORWARD, 0), 1),
        backward_input=max(durations.get(BACKWARD_INPUT, backward / 2), 1),
        backward_weight=max(durations.get(BACKWARD_WEIGHT, backward / 2), 1),
    )
    ratio = bubble_ratio(schedule, shape, times)
    return bubble_ratio(schedule, shape) if ratio is None else ratio


def _replayed_ratio(replica: Replica, medians: Mapping[Key, Ns]) -> float | None:
    idle = replay(replica.orders, medians, {})
    if idle is None:
        return None
    work = sum(int(medians[action.kind, action.stage]) for order in replica.orders.values() for action in order)
    idle_ns = sum(int(ns) for ns in idle.values())
    total = work + idle_ns
    return idle_ns / total if total else None


def first_round(replica: Replica) -> Replica:
    """Return the first round of a schedule that runs several times per step (gradient accumulation).

    Return all of it if the rounds cannot be separated because records of single microbatches are lost.
    """
    total = replica.num_microbatches
    sizes = (size for size in range(1, total) if total % size == 0)
    per_round = next((size for size in sizes if _starts_round(replica, size)), None)
    if per_round is None:
        return replica
    orders = {
        rank: tuple(action for action in order if action.microbatch < per_round)
        for rank, order in replica.orders.items()
    }
    kept = {action for order in orders.values() for action in order}
    return Replica(orders=orders, durations_ns={a: d for a, d in replica.durations_ns.items() if a in kept})


def _starts_round(replica: Replica, size: int) -> bool:
    """Return whether every rank runs the first `size` microbatches, and ends them before it begins another."""
    return all(_is_round(order, size) for order in replica.orders.values())


def _is_round(order: tuple[Action, ...], size: int) -> bool:
    first = {action.microbatch for action in order if action.microbatch < size}
    early = [action.microbatch < size for action in order]
    return len(first) == size and all(early[: sum(early)])


def _stages_of_ranks(replica: Replica) -> dict[int, list[int]]:
    return {rank: sorted({action.stage for action in order}) for rank, order in replica.orders.items()}
