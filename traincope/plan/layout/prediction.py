"""Predicted step time, MFU and cost of a layout, from formulas alone.

    work      = sum of the operators' times (`layout.operators`), or the host's launches if they take longer
    expected  = (work + tp + cp + ep + pp) / (1 - bubble) + ends + dp + optimizer, with the exposed part of each axis
    best      = the same with all communication hidden
    worst     = the same with none hidden

Best and worst do not bound the real step: the rates are as uncertain as the overlap. They show how far a change of the
layout depends on the overlap (`analysis.what_if`), and nothing prints them.

A stage waits for its collectives on tp, cp, ep and pp in each microbatch, so the bubble stretches them as it stretches
the work. The ends of a pipeline also compute embedding, logits and loss, and the other stages wait for the longer one.

What hides what:

    tp                    in backward: the gathers of inputs, and the sums of their gradients, behind the products of
                          the other gradients; with `Overlap.ALL` the rest but `Kernels.unhidden` of it
    ep, pp, Ulysses       nothing: their results are needed at once. The bubble rates of Qi et al. 2023
                          (arXiv:2401.10241) show that messages on pp are exposed twice per microbatch
    ring of cp            attention
    ZeRO 0 and 1          gradients hide behind the last microbatch's backward, weights behind the first one's forward
    ZeRO 2 and 3          the collectives of a block hide behind the blocks before it; the first gather of a microbatch
                          and the last reduction of a step are exposed (Zhao et al. 2023, arXiv:2304.11277, section 3.3)

Hidden collectives take processors and bandwidth from the kernels, which they delay by `Kernels.contention` of their
time. Without streams (`Machine.streams`) nothing hides tp, the ring and ZeRO 2 and 3.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.communication import INPUTS_AGAIN, NODE_WEIGHTS, Traffic, Volume, host_copies, volumes
from traincope.plan.layout.kernels import STREAMING
from traincope.plan.layout.layout import RING, Layout, Overlap, Place
from traincope.plan.layout.machine import Algorithm, Machine, Tier, Transfer, transfer
from traincope.plan.layout.memory import (
    Elements,
    RankMemory,
    elements,
    embeddings,
    held_blocks,
    memory,
    updated_parameters,
)
from traincope.plan.layout.operators import Work, work
from traincope.plan.model.flops import TRAINING, step_flops
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer
from traincope.plan.pipeline.actions import EQUAL
from traincope.plan.pipeline.bubble import bubble_ratio
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders
from traincope.plan.pipeline.schedule import timetable
from traincope.plan.pipeline.stage_layers import relative_work, stage_layers

HOUR_S = 3600
STATE_ACCESSES = 44
"""Bytes per parameter of an AdamW step: weights, two moments and the gradient are read and the first three written in
fp32, the gradient is read for its norm and scaled, and set to zero; the weights are written in 16 bits."""
DISK_ACCESSES = 2
"""Times that each byte of the optimizer's state passes between memory and disk in a step: read and written."""
QUANTIZED_GATHER_ACCESSES, QUANTIZED_REDUCTION_ACCESSES = 3, 7
"""Bytes per parameter of ZeRO++'s kernels: int8 is read and 16 bits are written; 16 bits are read and int8 written, and
int8 is read and fp32 written."""
LOSS_SCALING_ACCESSES = 14
"""Bytes per parameter more if the loss is scaled for fp16: gradients are cast to fp32, and then scaled back while they
are searched for infinities (Megatron-LM's Float16OptimizerWithFloat16Params)."""
CAST_ACCESSES = 8
"""Bytes per parameter of a cast to fp32 in a kernel of its own, which is written and read again."""
GATHER_ACCESSES, REDUCTION_ACCESSES = 4, 8
"""Bytes per parameter of FSDP's copies: out of the buffer of a gather; into that of a reduction, and its division by
the number of ranks (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)."""
BACKWARD_SHARE = 2 / TRAINING
"""Share of backward in forward and backward."""


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
    """Time of matrix products and attention, without the bubble."""
    recompute_seconds: float
    """Part of `kernel_seconds` that repeats forward."""
    pointwise_seconds: float
    """Time of the other operators, without the bubble."""
    launch_seconds: float = 0.0
    """Time in which the device waits for the host to launch kernels, without the bubble."""
    ends_seconds: float = 0.0
    """Time that the other stages wait for the one with the embedding or the logits."""
    copy_seconds: float = 0.0
    """Time of sums of gradients over microbatches, and of FSDP's copies."""
    optimizer_seconds: float = 0.0
    offload_seconds: float = 0.0
    """Time of copies between device, CPU and disks, and of an update on the CPU, that nothing hides."""
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
        return self.kernel_seconds + self.pointwise_seconds + self.launch_seconds

    @property
    def compute_seconds(self) -> float:
        """Compute time with the bubble."""
        return (
            self.work_seconds / (1 - self.bubble_ratio)
            + self.ends_seconds
            + self.copy_seconds
            + self.optimizer_seconds
            + self.offload_seconds
        )

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
        inner = sum(seconds.values()) / (1 - self.bubble_ratio)
        return self.compute_seconds + inner + once + self.host_seconds


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
    communicates: bool = True,
) -> Prediction:
    """Predict one layout. Raises UsageError for a layout that the model cannot have.

    `causal_half`: attention computes, and counts, only the half that a causal mask leaves. `held` and `bubble`: the
    layout's `memory` and `exact_bubble`, if they are computed already. Without `communicates` the prediction has no
    axes, and its step is a lower bound.
    """
    if held is None:
        workspace = machine.workspace_bytes
        held = memory(shape, layout=layout, precision=precision, policy=policy, workspace_bytes=workspace)
    bubble = exact_bubble(shape, layout=layout) if bubble is None else bubble
    model = step_flops(shape, batch=layout.batch, causal_half=causal_half).model
    one = work(shape, layout=layout, precision=precision, policy=policy, machine=machine, causal_half=causal_half)
    # Mean of the ranks of a pipeline, in a step.
    mean = layout.microbatches / layout.pp
    launching = one.launches * machine.kernels.launch_seconds if machine.kernels.launches else 0.0
    launches = max(launching - one.total, 0.0) * mean
    traffic = Traffic(shape=shape, layout=layout, precision=precision, recompute=policy.recompute)
    hides = _Hides(
        attention=one.attention * mean,
        forward=one.forward * mean,
        backward=(one.total - one.forward) * mean,
        streams=machine.streams,
        unhidden=machine.kernels.unhidden,
    )
    return Prediction(
        ranks=layout.ranks,
        tokens_per_step=layout.batch * shape.sequence,
        model_flops=model,
        bubble_ratio=bubble,
        ideal_seconds=model / (layout.ranks * machine.peak_flops),
        kernel_seconds=(one.products + one.again) * mean,
        recompute_seconds=one.again * mean,
        pointwise_seconds=(one.memory + one.again_memory) * mean,
        launch_seconds=launches,
        ends_seconds=_ends_seconds(shape, layout=layout, one=one),
        copy_seconds=_copy_seconds(traffic, machine=machine),
        optimizer_seconds=0.0 if layout.updates_on_cpu else _optimizer_seconds(traffic, machine=machine),
        offload_seconds=_offload_seconds(traffic, machine=machine, hidden_behind=one.total * mean),
        host_seconds=machine.host_seconds,
        axes=_axes(traffic, machine=machine, hides=hides) if communicates else (),
        memory=held,
        fits=all(fits(rank, machine) for rank in held),
    )


def fits(held: RankMemory, machine: Machine) -> bool:
    """Return whether a rank's bytes fit into its device, its share of the CPU's memory, and its share of the disks."""
    if held.total > machine.memory_bytes:
        return False
    if not (held.host or held.nvme):
        return True
    host = machine.host
    return host is not None and held.host <= host.memory_bytes and held.nvme <= host.nvme_bytes


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


def _ends_seconds(shape: Transformer, *, layout: Layout, one: Work) -> float:
    """Time by which the slowest stage exceeds one with as many blocks as the fullest, whose wait is in the bubble.

    The mean of the ranks has a share of the ends already.
    """
    if layout.pp == 1:
        return 0.0
    blocks = (one.total - one.ends) / shape.layers
    held = [held_blocks(shape, layout=layout, rank=rank)[0] for rank in range(layout.pp)]
    # Only these ranks have an end of the model.
    slowest = max(held[rank] * blocks + _end_seconds(layout, rank, one) for rank in (0, layout.pp - 1))
    return layout.microbatches * max(slowest - max(held) * blocks - one.ends / layout.pp, 0.0)


def _end_seconds(layout: Layout, rank: int, one: Work) -> float:
    """Time of a rank of the pipeline for the ends of the model."""
    stages = layout.stages(rank)
    return (one.first if 0 in stages else 0.0) + (one.last if layout.pipeline.stages - 1 in stages else 0.0)


def _optimizer_seconds(traffic: Traffic, *, machine: Machine) -> float:
    """Time of an AdamW step on the fullest rank's parameters, or on its shard of them."""
    updated = updated_parameters(_fullest(traffic.shape, traffic.layout), layout=traffic.layout)
    scaling = LOSS_SCALING_ACCESSES if traffic.precision.activations == "fp16" else 0
    return (STATE_ACCESSES + scaling) * updated * _streaming_seconds(machine)


def _offload_seconds(traffic: Traffic, *, machine: Machine, hidden_behind: float) -> float:
    """Time of copies, disks and the update on the CPU, of the fullest rank.

    Shards of weights and their gradients pass while other blocks compute. The update waits for all gradients: they are
    copied, the CPU passes over its memory as a device does in `_optimizer_seconds`, and weights are copied back.
    """
    layout, host = traffic.layout, machine.host
    if not layout.updates_on_cpu or host is None:
        return 0.0
    copies = max((host_copies(traffic, rank=rank) for rank in {0, layout.pp - 1}), key=_num_bytes)
    updated = updated_parameters(_fullest(traffic.shape, layout), layout=layout)
    update = STATE_ACCESSES * updated / host.memory_bytes_per_second
    if layout.state_place is Place.NVME:
        state = updated * traffic.precision.optimizer_bytes
        update = max(update, DISK_ACCESSES * state / host.nvme_bytes_per_second)
    if layout.parameters_place is Place.DEVICE:
        return update + _num_bytes(copies) / host.link_bytes_per_second
    rate = host.link_bytes_per_second
    if layout.parameters_place is Place.NVME:
        rate = min(rate, host.nvme_bytes_per_second)
    return update + max(_num_bytes(copies) / rate - hidden_behind, 0.0)


def _num_bytes(copies: Iterable[Volume]) -> int:
    return sum(each.num_bytes for each in copies)


def _copy_seconds(traffic: Traffic, *, machine: Machine) -> float:
    """Time of FSDP's copies, or of adding a microbatch's gradients to the sum of those before: read both, write one."""
    layout, held = traffic.layout, _fullest(traffic.shape, traffic.layout)
    if layout.zero >= 2:
        accesses = GATHER_ACCESSES * _gathers(layout) + REDUCTION_ACCESSES * layout.microbatches
        accesses = accesses + quantizing_accesses(layout) if layout.shards > layout.replicas else 0
    elif layout.cast_sums:
        accesses = (traffic.sum_accesses + CAST_ACCESSES) * layout.microbatches
    else:
        accesses = 0 if layout.fused_sums else traffic.sum_accesses * (layout.microbatches - 1)
    return accesses * (held.common + held.experts) * _streaming_seconds(machine)


def _gathers(layout: Layout) -> int:
    """Times that FSDP gathers all weights in a step."""
    return 2 * layout.microbatches if layout.zero == 3 else 1


def quantizing_accesses(layout: Layout) -> int:
    """Bytes per parameter that ZeRO++'s kernels read and write in a step. Copies of hpZ are gathered as they are."""
    gathers = layout.microbatches if layout.node_ranks is not None else _gathers(layout)
    reductions = layout.microbatches if layout.zero >= 2 else 1
    accesses = QUANTIZED_GATHER_ACCESSES * gathers if layout.quantize_weights else 0
    return accesses + (QUANTIZED_REDUCTION_ACCESSES * reductions if layout.quantize_gradients else 0)


def quantizing_seconds(shape: Transformer, *, layout: Layout, bytes_per_second: float) -> float:
    """Time of ZeRO++'s kernels in a step of the fullest rank. `bytes_per_second`: bandwidth of the device's memory."""
    held = _fullest(shape, layout)
    return quantizing_accesses(layout) * (held.common + held.experts) / (bytes_per_second * STREAMING)


def _fullest(shape: Transformer, layout: Layout) -> Elements:
    """Parameters of the end of the pipeline that has most."""
    ends = (elements(shape, layout=layout, rank=rank) for rank in {0, layout.pp - 1})
    return max(ends, key=lambda held: held.common + held.experts)


def _streaming_seconds(machine: Machine) -> float:
    """Time of a byte of a long copy."""
    memory = machine.memory_bytes_per_second
    return 0.0 if memory is None else 1 / (memory * STREAMING)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hides:
    """Seconds of a step behind which communication can hide."""

    attention: float
    forward: float
    backward: float
    """Recomputation included."""
    streams: bool
    """As in `Machine`."""
    unhidden: float
    """As in `Kernels`."""

    def exposed(self, axis: str, sent: Sequence[Transfer], traffic: Traffic) -> float:
        """Part of the time of an axis that nothing hides."""
        seconds, layout = sum(each.seconds for each in sent), traffic.layout
        if axis == "cp" and layout.cp_method == RING:
            return max(seconds - self.attention, 0.0) if self.streams else seconds
        if axis == "tp":
            return self._of_tensors(sent, traffic)
        if axis != "dp":
            return seconds * (self.unhidden if layout.overlap is Overlap.ALL and layout.pipeline.chunks > 1 else 1.0)
        gathers = sum(each.seconds for each in sent if each.operation == "all_gather")
        if layout.zero < 2:
            return self._once(gathers, seconds - gathers, layout)
        if not self.streams:
            return seconds
        of_nodes = sum(each.seconds for each in sent if each.what == NODE_WEIGHTS)
        return self._each(gathers, seconds - gathers, traffic, of_nodes=of_nodes)

    def _of_tensors(self, sent: Sequence[Transfer], traffic: Traffic) -> float:
        """Exposed part of collectives of tp. Backward needs gathered inputs, and sums of their gradients, late."""
        overlap = traffic.layout.overlap
        if overlap in (Overlap.NONE, Overlap.DATA) or not self.streams:
            return sum(each.seconds for each in sent)
        # Forward reduces as often as backward, and once more where a block is computed again.
        late = 2 / 5 if traffic.reruns_blocks else 1 / 2
        exposed = 0.0
        for each in sent:
            if each.operation in ("reduce_scatter", "all_reduce"):
                exposed += each.seconds * (1 - late)
            elif each.what != INPUTS_AGAIN:
                exposed += each.seconds
        return exposed * (self.unhidden if overlap is Overlap.ALL else 1.0)

    def _once(self, gathers: float, reductions: float, layout: Layout) -> float:
        """Exposed part of collectives of a whole step."""
        if layout.overlap is Overlap.NONE:
            return gathers + reductions
        behind = max(reductions - self.backward / layout.microbatches, 0.0)
        return behind + max(gathers - self.forward / layout.microbatches, 0.0)

    def _each(self, gathers: float, reductions: float, traffic: Traffic, *, of_nodes: float) -> float:
        """Exposed part of collectives of each microbatch's blocks. `of_nodes`: gathers within nodes, for backward."""
        layout, units = traffic.layout, num_units(traffic, rank=0)
        ahead = gathers - of_nodes if layout.node_ranks is not None else gathers / 2 if layout.zero == 3 else gathers
        first = ahead / units / (1 if layout.zero == 3 else layout.microbatches)
        last = reductions / units / layout.microbatches
        hidden_ahead, hidden_back = max(ahead - first, 0.0), max(gathers - ahead + reductions - last, 0.0)
        forward = self.forward if layout.zero == 3 else self.forward / layout.microbatches
        return first + last + max(hidden_ahead - forward, 0.0) + max(hidden_back - self.backward, 0.0)


def num_units(traffic: Traffic, *, rank: int) -> int:
    """Pieces in which weights are gathered and gradients reduced: each block, and the ends."""
    return traffic.blocks(rank)[0] + 1


def _axes(traffic: Traffic, *, machine: Machine, hides: _Hides) -> tuple[AxisTime, ...]:
    """Axes of the rank of the pipeline that sends longest."""
    ranks = []
    for rank in _different_ranks(traffic):
        units = num_units(traffic, rank=rank)
        sent = (
            replace(each, count=each.count * units) if each.axis == "dp" else each
            for each in volumes(traffic, rank=rank)
        )
        ranks.append([_transfer(volume, layout=traffic.layout, machine=machine) for volume in sent])
    slowest = max(ranks, key=lambda sent: sum(each.seconds for each in sent))
    axes = dict.fromkeys(each.axis for each in slowest)
    return tuple(
        _axis_time(
            [each for each in slowest if each.axis == axis],
            traffic=traffic,
            hides=hides,
            contention=machine.kernels.contention,
        )
        for axis in axes
    )


def _axis_time(sent: Sequence[Transfer], *, traffic: Traffic, hides: _Hides, contention: float) -> AxisTime:
    seconds, tiers = sum(each.seconds for each in sent), list(Tier)
    longest = max(sent, key=lambda each: each.seconds)
    exposed = hides.exposed(longest.axis, sent, traffic)
    return AxisTime(
        axis=longest.axis,
        tier=max((each.tier for each in sent), key=tiers.index),
        algorithm=longest.algorithm,
        seconds=seconds,
        exposed_seconds=exposed + contention * (seconds - exposed),
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
        if volume.what == NODE_WEIGHTS:
            return inner * volume.ranks, inner
        if layout.zero and volume.operation != "all_reduce":
            shards = layout.shards // layout.replicas
            return inner * shards, inner * (shards // volume.ranks)
        return stage, inner * (layout.shards // volume.ranks)
    return stage * layout.pp, stage * (layout.pp - 1 if volume.operation == "all_reduce" else 1)
