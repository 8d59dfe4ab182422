"""Predicted step time, MFU and cost of a layout, from formulas alone.

    work      = executed FLOPs / (ranks x peak x efficiency) + bytes of the other operations / memory bandwidth
    expected  = (work + tp + cp + ep + pp) / (1 - bubble) + dp, with the exposed part of each axis
    best      = the same with all communication hidden
    worst     = the same with none hidden

Best and worst do not bound the real step: the rates are as uncertain as the overlap. They show how far a change of the
layout depends on the overlap (`analysis.what_if`), and nothing prints them.

A stage waits for its collectives on tp, cp, ep and pp in each microbatch, so the bubble stretches them as it stretches
the work. A ring of cp hides behind attention. Gradients of dp hide behind the last microbatch's backward. With ZeRO's
stages 2 and 3 each microbatch has its own collectives. They hide behind the whole work, or behind nothing where a
device has no streams (`Machine.streams`). The collectives on tp, ep and pp are exposed: their results are needed at
once. The bubble rates of Qi et al. 2023 (arXiv:2401.10241) show that messages on pp are exposed twice per microbatch.

The share of peak that kernels reach is given (`efficiency`), not computed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from traincope.plan.layout.activations import ActivationPolicy, model_bytes
from traincope.plan.layout.communication import Traffic, Volume, volumes
from traincope.plan.layout.layout import RING, Layout
from traincope.plan.layout.machine import Algorithm, Machine, Tier, Transfer, transfer
from traincope.plan.layout.memory import RankMemory, embeddings, held_blocks, memory
from traincope.plan.model.flops import TRAINING, Recompute, attention_forward, executed_flops, step_flops
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer
from traincope.plan.pipeline.actions import EQUAL
from traincope.plan.pipeline.bubble import bubble_ratio
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders
from traincope.plan.pipeline.schedule import timetable
from traincope.plan.pipeline.stage_layers import relative_work, stage_layers

HOUR_S = 3600
BACKWARD_SHARE = 2 / TRAINING
"""Share of backward in forward and backward."""
FORWARD_ACCESSES = 2 / 5
"""Share of the accesses to activations that a forward makes: it writes and reads them (see `Machine.accesses`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisTime:
    """Communication of one axis in a step, of the rank that sends most."""

    axis: str
    tier: Tier
    """Slowest links that it crosses."""
    algorithm: Algorithm
    """Algorithm of the collectives that take longest."""
    seconds: float
    """Time on the wire."""
    exposed_seconds: float
    """Part of it that nothing hides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction for one layout."""

    ranks: int
    tokens_per_step: int
    model_flops: int
    bubble_ratio: float
    ideal_seconds: float
    """Time of the model's FLOPs at peak."""
    kernel_seconds: float
    """Time of matrix products, without the bubble."""
    recompute_seconds: float
    """Part of `kernel_seconds` that repeats forward."""
    pointwise_seconds: float
    """Time of the other operations, without the bubble."""
    host_seconds: float = 0.0
    """Time of the step's rest, as the machine gives it."""
    axes: tuple[AxisTime, ...]
    """Axes that communicate."""
    memory: tuple[RankMemory, ...]
    """Memory of each rank of the pipeline."""
    fits: bool

    @property
    def work_seconds(self) -> float:
        """Time of all kernels, without the bubble."""
        return self.kernel_seconds + self.pointwise_seconds

    @property
    def compute_seconds(self) -> float:
        """Compute time with the bubble."""
        return self.work_seconds / (1 - self.bubble_ratio)

    @property
    def axis_seconds(self) -> Mapping[str, float]:
        """Axis -> time on the wire of the rank that sends most."""
        return {each.axis: each.seconds for each in self.axes}

    @property
    def best_seconds(self) -> float:
        return self.compute_seconds + self.host_seconds

    @property
    def worst_seconds(self) -> float:
        return self._step((each.axis, each.seconds) for each in self.axes)

    @property
    def expected_seconds(self) -> float:
        return self._step((each.axis, each.exposed_seconds) for each in self.axes)

    @property
    def expected_mfu(self) -> float:
        return self.ideal_seconds / self.expected_seconds

    @property
    def largest_bytes(self) -> int:
        """Memory of the fullest rank."""
        return max(rank.total for rank in self.memory)

    @property
    def bubble_seconds(self) -> float:
        """Time that a rank idles for the pipeline's schedule in the expected step."""
        inner = self.work_seconds + sum(each.exposed_seconds for each in self.axes if each.axis != "dp")
        return inner / (1 - self.bubble_ratio) - inner

    def device_hours(self, tokens: float) -> float:
        """Device hours to train on `tokens` tokens."""
        return tokens / self.tokens_per_step * self.expected_seconds * self.ranks / HOUR_S

    def _step(self, axes: Iterable[tuple[str, float]]) -> float:
        """Time of a step with these seconds of communication."""
        seconds = dict(axes)
        once = seconds.pop("dp", 0.0)
        return (self.work_seconds + sum(seconds.values())) / (1 - self.bubble_ratio) + once + self.host_seconds


def predict(
    shape: Transformer,
    *,
    layout: Layout,
    precision: Precision,
    policy: ActivationPolicy,
    machine: Machine,
    causal_half: bool = False,
    held: tuple[RankMemory, ...] | None = None,
    bubble: float | None = None,
) -> Prediction:
    """Predict one layout. Raises UsageError for a layout that the model cannot have.

    `causal_half`: attention computes, and counts, only the half that a causal mask leaves. `held` and `bubble`: the
    layout's `memory` and `exact_bubble`, if they are computed already.
    """
    held = memory(shape, layout=layout, precision=precision, policy=policy) if held is None else held
    bubble = exact_bubble(shape, layout=layout) if bubble is None else bubble
    model = step_flops(shape, batch=layout.batch, causal_half=causal_half).model
    executed = executed_flops(shape, batch=layout.batch, recompute=policy.recompute, causal_half=causal_half)
    peak = layout.ranks * machine.peak_flops
    kernels = executed / (peak * machine.efficiency)
    pointwise = _pointwise_seconds(shape, layout=layout, policy=policy, machine=machine)
    attention = TRAINING * attention_forward(shape, batch=layout.batch, causal_half=causal_half)
    hides = _Hides(
        attention=attention / (peak * machine.efficiency),
        backward=BACKWARD_SHARE * (kernels + pointwise) / layout.microbatches,
        work=kernels + pointwise,
        streams=machine.streams,
    )
    traffic = Traffic(shape=shape, layout=layout, precision=precision, recompute=policy.recompute)
    return Prediction(
        ranks=layout.ranks,
        tokens_per_step=layout.batch * shape.sequence,
        model_flops=model,
        bubble_ratio=bubble,
        ideal_seconds=model / peak,
        kernel_seconds=kernels,
        recompute_seconds=kernels * (1 - model / executed),
        pointwise_seconds=pointwise,
        host_seconds=machine.host_seconds,
        axes=_axes(traffic, machine=machine, hides=hides),
        memory=held,
        fits=max(rank.total for rank in held) <= machine.memory_bytes,
    )


def exact_bubble(shape: Transformer, *, layout: Layout) -> float:
    """Bubble of a layout by the schedule's formula.

    Without a formula, and with stages of unequal numbers of layers, from the timetable of its order. F, I and W of a
    layer then take equal times.
    """
    if layout.pp == 1:
        return 0.0
    return _bubble(layout.order_name, layout.pipeline, shape.layers)


def least_bubble(shape: Transformer, *, layout: Layout) -> float:
    """A lower bound of `exact_bubble`, without a timetable; the formula itself for equal stages of most schedules.

    A rank waits for the forwards of all stages before its first, and does all of its work. Its last whole backward is
    on its first stage, whose backwards on the stages before follow.
    """
    return _least_bubble(layout.order_name, layout.pipeline, shape.layers)


@lru_cache(maxsize=4096)
def _least_bubble(schedule: str, pipeline: Shape, layers: int) -> float:
    split, kind = stage_layers(layers, schedule=schedule, shape=pipeline), SCHEDULES[schedule]
    around = 1 - BACKWARD_SHARE if kind.splits_backward else 1.0
    spans = []
    for rank in range(pipeline.ranks):
        stages = kind.placement(rank, pipeline)
        work = pipeline.microbatches * sum(len(split[stage]) for stage in stages)
        spans.append(work + around * split[stages[0]].start)
    return 1 - pipeline.microbatches * layers / (pipeline.ranks * max(spans))


@lru_cache(maxsize=1024)
def _bubble(schedule: str, pipeline: Shape, layers: int) -> float:
    work = relative_work(stage_layers(layers, schedule=schedule, shape=pipeline))
    formula = bubble_ratio(schedule, pipeline) if len(set(work.values())) == 1 else None
    return timetable(orders(schedule, pipeline), EQUAL, work=work).idle_ratio if formula is None else formula


def _pointwise_seconds(shape: Transformer, *, layout: Layout, policy: ActivationPolicy, machine: Machine) -> float:
    """Time of all operations besides matrix products, mean of a pipeline's ranks.

    They move each byte that forward writes a few times. Recomputation repeats the forward's share of what was not kept.
    """
    if machine.memory_bytes_per_second is None:
        return 0.0
    whole, kept = (
        model_bytes(shape, layout=layout, policy=each) for each in (policy.with_recompute(Recompute.NONE), policy)
    )
    moved = machine.accesses * (whole + FORWARD_ACCESSES * (whole - kept))
    return layout.microbatches * moved / layout.pp / machine.memory_bytes_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hides:
    """Seconds of a step behind which communication can hide."""

    attention: float
    backward: float
    """Backward of one microbatch."""
    work: float
    streams: bool
    """As in `Machine`."""

    def behind(self, axis: str, layout: Layout) -> float:
        if axis == "cp":
            return self.attention if layout.cp_method == RING else 0.0
        if axis == "dp":
            shards = self.work if self.streams else 0.0
            return shards if layout.zero >= 2 else self.backward
        return 0.0


def _axes(traffic: Traffic, *, machine: Machine, hides: _Hides) -> tuple[AxisTime, ...]:
    """Axes of the rank of the pipeline that sends longest."""
    ranks = [
        [_transfer(volume, layout=traffic.layout, machine=machine) for volume in volumes(traffic, rank=rank)]
        for rank in _different_ranks(traffic)
    ]
    slowest = max(ranks, key=lambda sent: sum(each.seconds for each in sent))
    axes = dict.fromkeys(each.axis for each in slowest)
    return tuple(
        _axis_time([each for each in slowest if each.axis == axis], hidden=hides.behind(axis, traffic.layout))
        for axis in axes
    )


def _axis_time(sent: Sequence[Transfer], *, hidden: float) -> AxisTime:
    seconds, tiers = sum(each.seconds for each in sent), list(Tier)
    longest = max(sent, key=lambda each: each.seconds)
    return AxisTime(
        axis=longest.axis,
        tier=max((each.tier for each in sent), key=tiers.index),
        algorithm=longest.algorithm,
        seconds=seconds,
        exposed_seconds=max(seconds - hidden, 0.0),
    )


def _different_ranks(traffic: Traffic) -> Iterable[int]:
    """Ranks of the pipeline that may send different amounts: one of those with equal blocks, embeddings and place."""
    layout, last = traffic.layout, traffic.layout.pp - 1
    kinds = {}
    for rank in range(layout.pp):
        matrices = embeddings(traffic.shape, layout=layout, rank=rank)
        held = held_blocks(traffic.shape, layout=layout, rank=rank)
        kinds[held, matrices, rank in (0, last)] = rank
    # Both ends stay: each of them may lack one neighbour.
    return sorted({0, last, *kinds.values()})


def _transfer(volume: Volume, *, layout: Layout, machine: Machine) -> Transfer:
    span, stride = _place(layout, volume)
    return transfer(volume, machine=machine, span=span, stride=stride)


def _place(layout: Layout, volume: Volume) -> tuple[int, int]:
    """Consecutive ranks that a group of the axis lies within, and the distance of two neighbours in it.

    tp is innermost, then cp, dp, pp. Gradients are summed over dp and cp together; ep takes the inner of these ranks.
    Shards that are replicated lie on neighbours, and the replicas of a shard as far apart as a replica has ranks.
    A tied embedding's gradients are summed over the first and the last rank of pp.
    """
    inner = layout.tp
    if volume.axis == "tp":
        return inner, 1
    if volume.axis == "cp":
        return inner * layout.cp, inner
    if volume.axis == "ep":
        return inner * layout.ep, inner
    stage = inner * layout.shards
    if volume.axis == "dp":
        if layout.zero and volume.operation != "all_reduce":
            shards = layout.shards // layout.replicas
            return inner * shards, inner * (shards // volume.ranks)
        return stage, inner * (layout.shards // volume.ranks)
    return stage * layout.pp, stage * (layout.pp - 1 if volume.operation == "all_reduce" else 1)
