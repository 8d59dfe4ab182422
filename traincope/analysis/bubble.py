"""The pipeline bubble: idle time of a stage, split by replaying what ran.

The pool to be split is the stage's time in a step's window that is in none of its own actions and
in nothing else the ledger names. With every stage given the mean of the stages' median durations
and free transfers the replay idles for the schedule alone; own medians add the imbalance; measured
transfers add exposed transfer; what really happened adds the jitter. Differences of
counterfactuals, so signed; their sum is the pool, exactly. A rank may have several stages, and a
stage I and W instead of B: a rank is idle where none of its actions runs, and each kind of action
has a median of its own.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincope.analysis.pipeline import Ints, ReplicaSteps, by_number
from traincope.analysis.schedule import CUSTOM, Replica, mean_over_stages, recognise, replay
from traincope.analysis.transfers import Transfers, medians, received
from traincope.plan.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, Times
from traincope.plan.bubble import bubble_ratio
from traincope.plan.orders import Shape
from traincope.plan.schedule import Key, Ns, Timetable
from traincope.timeline import Instances
from traincope.topology import PIPELINE_AXIS


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Idle ns of one rank by the three replays, one entry a step."""

    numbers: Ints
    """Step numbers."""
    schedule_ns: Ints
    imbalance_ns: Ints
    transfer_ns: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBubble:
    """One stage, summed over its ranks and the counted steps."""

    stage: int
    others: tuple[int, ...] = ()
    """Further stages of the same ranks: idle together with it, so they have no entry of their own."""
    slowest: int
    """Of these stages the one that computes longest."""
    ranks: tuple[int, ...]
    schedule_ns: int
    imbalance_ns: int
    jitter_ns: int
    wall_ns: int
    """Of those of the steps that could be replayed."""

    @property
    def fraction_ratio(self) -> float:
        """(schedule + imbalance + jitter) / wall."""
        return (self.schedule_ns + self.imbalance_ns + self.jitter_ns) / self.wall_ns if self.wall_ns else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubble:
    """The pipeline of a run."""

    schedule: str
    """Its name in `plan.orders.SCHEDULES`, or custom, told from the recorded order."""
    num_stages: int
    num_microbatches: int
    chunks: int = 1
    """Stages of one rank."""
    stages: tuple[StageBubble, ...]
    theory_ratio: float | None
    """Idle share of total time by the schedule's formula; None where there is no formula."""
    replay_ratio: float | None
    """The same by replaying the recorded order with equal stages and free transfers."""
    one_clock: bool = True
    """Whether the stages' times compare: what their hosts' clocks may be apart is nothing beside a step."""
    step: int | None = None
    """The step of median length among those that ran this order."""
    timetable: Timetable | None = None
    """What one replica did in that step, ns from its begin; None where `one_clock` does not hold."""

    @property
    def shape(self) -> Shape:
        return Shape(ranks=self.num_stages // self.chunks, microbatches=self.num_microbatches, chunks=self.chunks)

    @property
    def parts(self) -> dict[str, float]:
        """Shares of the replayed steps' time, over all ranks."""
        wall_ns = sum(stage.wall_ns for stage in self.stages)
        sums = {
            "schedule": sum(stage.schedule_ns for stage in self.stages),
            "imbalance": sum(stage.imbalance_ns for stage in self.stages),
            "jitter": sum(stage.jitter_ns for stage in self.stages),
        }
        return {name: ns / wall_ns if wall_ns else 0.0 for name, ns in sums.items()}

    @property
    def fraction_ratio(self) -> float:
        """Headline: the mean over the stages."""
        return sum(stage.fraction_ratio for stage in self.stages) / len(self.stages)


def replay_idle(steps: ReplicaSteps, transfers: Mapping[tuple[int, int], Ns]) -> dict[int, Idle]:
    """Rank -> its idle time by the replays; empty where the recorded order cannot be replayed."""
    replica = steps.replica
    own = replica.medians()
    runs = (
        replay(replica.orders, mean_over_stages(own), {}),
        replay(replica.orders, own, {}),
        replay(replica.orders, own, transfers),
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
    """(source rank, destination rank) on the pipeline's axis -> (step numbers, median transfer ns in each)."""
    pipeline = np.array([axis == PIPELINE_AXIS for axis in instances.axes])
    chosen = np.flatnonzero(received(instances) & pipeline[instances.parts.axis_code])
    senders = np.array([channel.source for channel in instances.channels], dtype=np.int64)
    source = senders[instances.channel[instances.number[chosen]]]
    destination = instances.parts.rank[chosen]
    result = {}
    for pair in sorted(set(zip(source.tolist(), destination.tolist(), strict=True))):
        of = chosen[(source == pair[0]) & (destination == pair[1])]
        result[pair] = medians(instances.parts.step[of].astype(np.int64), wire.ns[instances.number[of]])
    return result


def stage_transfers(
    steps: ReplicaSteps, measured: Mapping[tuple[int, int], tuple[Ints, Ints]]
) -> dict[tuple[int, int], Ns]:
    """(source stage, destination stage) -> ns in each of the steps, 0 where nothing was measured."""
    stages = _stages_of_ranks(steps.replica)
    return {
        (source_stage, destination_stage): by_number(steps.numbers, *measured[source, destination], missing=0)
        for source, source_stages in stages.items()
        for destination, destination_stages in stages.items()
        if (source, destination) in measured
        for source_stage in source_stages
        for destination_stage in destination_stages
    }


def usual_work_ns(steps: Sequence[ReplicaSteps], stage: int) -> int:
    """How long the stage computes for a microbatch: of each kind of its actions the median over all steps."""
    seen: dict[str, list[Ints]] = defaultdict(list)
    for one in steps:
        for action, ns in one.replica.durations_ns.items():
            if action.stage == stage:
                seen[action.kind].append(np.atleast_1d(ns))
    return round(sum(float(np.median(np.concatenate(durations))) for durations in seen.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Theory:
    """What is to be expected of a recorded order."""

    schedule: str
    num_microbatches: int
    """Of one of its rounds."""
    chunks: int
    formula_ratio: float | None
    """Idle share of total time by the schedule's formula."""
    replay_ratio: float | None
    """The same by replay, with equal stages and free transfers."""


def theory(replica: Replica) -> Theory:
    """Of one step's actions, all of them where they are a schedule's, else those of its first round."""
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
    """With the run's own mean times, or where a formula holds only for equal ones, with those."""
    own = {kind: int(duration) for (kind, _), duration in medians.items()}
    backward = own.get(BACKWARD, 0)
    times = Times(
        forward=max(own.get(FORWARD, 0), 1),
        backward_input=max(own.get(BACKWARD_INPUT, backward / 2), 1),
        backward_weight=max(own.get(BACKWARD_WEIGHT, backward / 2), 1),
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
    """A schedule that runs several times a step (gradient accumulation): its first time.

    All of it where records of single microbatches were lost, so that rounds cannot be told apart.
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
    """Whether every rank has the first `size` microbatches, and finishes them before it begins another."""
    return all(_is_round(order, size) for order in replica.orders.values())


def _is_round(order: tuple[Action, ...], size: int) -> bool:
    first = {action.microbatch for action in order if action.microbatch < size}
    early = [action.microbatch < size for action in order]
    return len(first) == size and all(early[: sum(early)])


def _stages_of_ranks(replica: Replica) -> dict[int, list[int]]:
    return {rank: sorted({action.stage for action in order}) for rank, order in replica.orders.items()}
