"""Step of a pipeline after a change of its ranks, stages, microbatches or schedule, by replaying measured actions.

The replay of the new order takes the place of the replay of the recorded one; the rest of the step stays. Three
quantities are not measured, so each has two values, between which the truth is assumed to lie:

- messages of another size: their time stays (latency), or changes with their bytes (bandwidth);
- a split backward: W takes a third or a half of it;
- stages that move to other ranks: a rank keeps its work, or all stages are equal.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

from traincope.analysis.communication.axis_operations import AxisOperation
from traincope.analysis.context import Context
from traincope.analysis.pipeline.bubble import Bubble, measured_transfers
from traincope.errors import UsageError
from traincope.plan.layout.bus import RING_FACTORS
from traincope.plan.pipeline.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Action, Order, Orders
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders
from traincope.plan.pipeline.schedule import Key, Timetable, finish
from traincope.topology import PIPELINE_AXIS

NUM_ROUNDS = 3
"""Steps in a row; the last one counts if a rank may begin a step before others have ended the previous one."""
WHOLE_PIPELINE = (PIPELINE_AXIS, "world")
"""Axes whose collectives make all stages wait for each other, as the norm of the gradients does."""
WEIGHT_SHARES = (1 / 2, 1 / 3)
"""Shares of W in a whole backward: equal I and W, and W as long as half of I. The first one is the usual assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A recorded pipeline."""

    schedule: str
    shape: Shape
    orders: Orders
    durations_ns: Mapping[Key, int]
    """Median over the microbatches of the step of median length."""
    message_ns: int
    """Median time of a message between two ranks on the wire."""
    is_synchronised: bool
    """Every step ends with a collective over the pipeline's ranks."""
    span_ns: int
    """Recorded time from the first action to the last one."""

    def work_ns(self, rank: int) -> Mapping[str, float]:
        """Kind of action -> time of one microbatch on all stages of the rank; a split backward counts as B."""
        sums: dict[str, float] = defaultdict(float)
        for stage in {action.stage for action in self.orders[rank]}:
            for kind in (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT):
                sums[FORWARD if kind == FORWARD else BACKWARD] += self.durations_ns.get((kind, stage), 0)
        return sums

    @property
    def weight_share(self) -> float | None:
        """Share of W in a backward; None if no backward is split."""
        sums: dict[str, int] = defaultdict(int)
        for (kind, _), ns in self.durations_ns.items():
            sums[kind] += ns
        split = sums[BACKWARD_INPUT] + sums[BACKWARD_WEIGHT]
        return sums[BACKWARD_WEIGHT] / split if sums[BACKWARD_WEIGHT] else None


def recorded_pipeline(bubble: Bubble | None, streams: Context, comm: Sequence[AxisOperation]) -> Measured:
    """The recorded pipeline. Raises UsageError if its step cannot be replayed, or its order is unknown."""
    if bubble is None or bubble.timetable is None:
        raise UsageError(
            "this run has no pipeline whose step can be replayed, so pp, microbatches, schedule and virtual cannot be "
            "predicted; `traincope plan search --like RUN` computes them by formula"
        )
    if bubble.schedule not in SCHEDULES:
        raise UsageError(f"the recorded order is {bubble.schedule}, which no schedule is; it cannot be changed")
    messages = [int(ns) for _, each in measured_transfers(streams.instances, streams.transfers).values() for ns in each]
    synchronised = any(row.axis in WHOLE_PIPELINE and row.operation in RING_FACTORS for row in comm)
    return measured_pipeline(
        bubble,
        bubble.timetable,
        message_ns=round(median(messages)) if messages else 0,
        is_synchronised=synchronised,
    )


def measured_pipeline(bubble: Bubble, timetable: Timetable, *, message_ns: int, is_synchronised: bool) -> Measured:
    """The pipeline of the step of median length. Raises UsageError if the step runs its schedule several times."""
    microbatches = len({ran.action.microbatch for row in timetable.rows.values() for ran in row})
    if microbatches != bubble.num_microbatches:
        raise UsageError(
            f"a step of this run takes {microbatches} microbatches in rounds of {bubble.num_microbatches}; only a step "
            "of one round can be predicted"
        )
    durations: dict[Key, list[int]] = defaultdict(list)
    for row in timetable.rows.values():
        for ran in row:
            durations[ran.action.kind, ran.action.stage].append(ran.end - ran.start)
    return Measured(
        schedule=bubble.schedule,
        shape=bubble.shape,
        orders={rank: tuple(ran.action for ran in row) for rank, row in timetable.rows.items()},
        durations_ns={key: round(median(each)) for key, each in durations.items()},
        message_ns=message_ns,
        is_synchronised=is_synchronised,
        span_ns=timetable.span,
    )


def replayed_ns(measured: Measured) -> int:
    """Time of a step by the replay of the recorded order. Raises UsageError if it cannot run."""
    return _step_ns(measured.orders, measured.durations_ns, measured.message_ns, measured.is_synchronised)


def balanced_ns(measured: Measured) -> int:
    """Time of a step in which all ranks have the mean of the recorded work."""
    share = WEIGHT_SHARES[0] if measured.weight_share is None else measured.weight_share
    *_, even = _durations(measured, measured.orders, measured.shape, sequences=1, weight_share=share)
    return _step_ns(measured.orders, even, measured.message_ns, measured.is_synchronised)


def changed_ns(measured: Measured, *, schedule: str, shape: Shape) -> tuple[int, ...]:
    """Times of a step with the new schedule and size, the expected one first, then other assumptions.

    The batch stays: an action takes the time of its share of the sequences. Raises UsageError for a size that the
    schedule cannot have.
    """
    refusal = SCHEDULES[schedule].refusal(shape)
    if refusal is not None:
        raise UsageError(f"{schedule} {refusal}")
    new = orders(schedule, shape)
    sequences = measured.shape.microbatches / shape.microbatches
    size_changes = sequences != 1
    messages = [measured.message_ns, *([round(measured.message_ns * sequences)] if size_changes else [])]
    splits = SCHEDULES[schedule].splits_backward
    known = measured.weight_share
    shares = (known,) if known is not None else WEIGHT_SHARES if splits else WEIGHT_SHARES[:1]
    return tuple(
        _step_ns(new, durations, message_ns, measured.is_synchronised)
        for share, message_ns in product(shares, messages)
        for durations in _durations(measured, new, shape, sequences=sequences, weight_share=share)
    )


def _durations(
    measured: Measured, new: Orders, shape: Shape, *, sequences: float, weight_share: float
) -> Iterator[Mapping[Key, int]]:
    """Yield the durations if a rank keeps its work, and if all ranks have the mean of it. Ranks count by their place in
    the pipeline: recorded ones have the job's numbers.
    """
    work = [measured.work_ns(rank) for rank in measured.orders]
    even = {kind: sum(each[kind] for each in work) / shape.ranks for kind in (FORWARD, BACKWARD)}
    assumed = [[even] * shape.ranks]
    if shape.ranks == len(work):
        assumed.insert(0, [dict(each) for each in work])
    for of_ranks in assumed:
        yield {
            (action.kind, action.stage): round(
                _share(action.kind, weight_share)
                * of_ranks[place][FORWARD if action.kind == FORWARD else BACKWARD]
                * sequences
                / shape.chunks
            )
            for place, order in enumerate(new.values())
            for action in order
        }


def _share(kind: str, weight_share: float) -> float:
    """Share of an action in its forward or backward."""
    return {BACKWARD_INPUT: 1 - weight_share, BACKWARD_WEIGHT: weight_share}.get(kind, 1.0)


def _step_ns(new: Orders, durations: Mapping[Key, int], message_ns: int, is_synchronised: bool) -> int:
    rounds = 1 if is_synchronised else NUM_ROUNDS
    repeated = {rank: _repeated(order, rounds) for rank, order in new.items()}
    stages = {stage for _, stage in durations}
    messages = {(stage, stage + step): message_ns for stage in stages for step in (1, -1)}
    ends = finish(repeated, durations, messages)
    if ends is None:
        raise UsageError("the order cannot run: each rank waits for an action that comes later on another rank")
    round_ends = [
        max(int(ends[repeated[rank][(at + 1) * len(order) - 1]]) for rank, order in new.items()) for at in range(rounds)
    ]
    return round_ends[-1] - (round_ends[-2] if rounds > 1 else 0)


def _repeated(order: Order, rounds: int) -> Order:
    """The order of several steps in a row, with microbatches of their own."""
    later = max(action.microbatch for action in order) + 1
    return tuple(
        Action(action.kind, action.stage, action.microbatch + at * later) for at in range(rounds) for action in order
    )
