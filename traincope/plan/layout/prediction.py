"""Predicted step time, MFU and cost of a layout between two bounds, from formulas alone.

    compute = executed FLOPs / (ranks x peak x efficiency), and with it the schedule's bubble
    best    = compute: all communication is hidden
    worst   = compute + wire bytes / bandwidth on every axis: none is hidden

The true value lies in between. The share of peak that kernels reach is given (`efficiency`), not computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from traincope.errors import UsageError
from traincope.plan.layout.activations import ActivationPolicy
from traincope.plan.layout.communication import Traffic, volumes
from traincope.plan.layout.layout import Layout
from traincope.plan.layout.memory import RankMemory, memory
from traincope.plan.model.flops import step_flops
from traincope.plan.model.precision import Precision
from traincope.plan.model.transformer import Transformer
from traincope.plan.pipeline.actions import EQUAL
from traincope.plan.pipeline.bubble import bubble_ratio
from traincope.plan.pipeline.orders import orders
from traincope.plan.pipeline.schedule import timetable
from traincope.plan.pipeline.stage_layers import relative_work

HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Devices and links of the job. Raises UsageError for impossible values."""

    peak_flops: float
    """Dense FLOP/s of one device."""
    memory_bytes: int
    """Memory of one device."""
    ranks_per_node: int = 8
    node_bytes_per_second: float
    """Rate at which a rank sends to ranks of its node, in one direction."""
    network_bytes_per_second: float
    """Rate at which a rank sends to other nodes, in one direction."""
    efficiency: float = 0.6
    """Share of peak that kernels reach while they run."""

    def __post_init__(self) -> None:
        for name in (
            "peak_flops",
            "memory_bytes",
            "ranks_per_node",
            "node_bytes_per_second",
            "network_bytes_per_second",
        ):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name):g}; it must be greater than 0")
        if not 0 < self.efficiency <= 1:
            raise UsageError(
                f"efficiency is {self.efficiency:g}; it must lie in (0, 1]: the share of peak that kernels reach"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction for one layout."""

    ranks: int
    tokens_per_step: int
    model_flops: int
    bubble_ratio: float
    compute_seconds: float
    """Compute time with the bubble."""
    axis_seconds: Mapping[str, float]
    """Axis -> time on the wire of the rank that sends most."""
    memory: tuple[RankMemory, ...]
    """Memory of each rank of the pipeline."""
    fits: bool
    best_mfu: float
    worst_mfu: float

    @property
    def best_seconds(self) -> float:
        return self.compute_seconds

    @property
    def worst_seconds(self) -> float:
        return self.compute_seconds + sum(self.axis_seconds.values())

    def device_hours(self, tokens: float) -> tuple[float, float]:
        """Device hours to train on `tokens` tokens: (best, worst)."""
        steps = tokens / self.tokens_per_step
        return tuple(steps * seconds * self.ranks / HOUR_S for seconds in (self.best_seconds, self.worst_seconds))  # type: ignore[return-value]


def predict(
    shape: Transformer, *, layout: Layout, precision: Precision, policy: ActivationPolicy, machine: Machine
) -> Prediction:
    """Predict one layout. Raises UsageError for a layout that the model cannot have."""
    held = memory(shape, layout=layout, precision=precision, policy=policy)
    flops = step_flops(shape, batch=layout.batch, recompute=policy.recompute)
    traffic = Traffic(shape=shape, layout=layout, precision=precision, recompute=policy.recompute)
    bubble = _bubble(layout, shape)
    compute = flops.hardware / (layout.ranks * machine.peak_flops * machine.efficiency) / (1 - bubble)
    axes = _slowest_rank([_axis_seconds(traffic, machine, rank) for rank in range(layout.pp)])
    ideal = flops.model / (layout.ranks * machine.peak_flops)
    return Prediction(
        ranks=layout.ranks,
        tokens_per_step=layout.batch * shape.sequence,
        model_flops=flops.model,
        bubble_ratio=bubble,
        compute_seconds=compute,
        axis_seconds=axes,
        memory=held,
        fits=max(rank.total for rank in held) <= machine.memory_bytes,
        best_mfu=ideal / compute,
        worst_mfu=ideal / (compute + sum(axes.values())),
    )


def _bubble(layout: Layout, shape: Transformer) -> float:
    """Bubble by the schedule's formula.

    Without a formula, and with stages of unequal numbers of layers, from the timetable of its order. F, I and W of a
    layer then take equal times.
    """
    if layout.pp == 1:
        return 0.0
    work = relative_work(layout.blocks(shape))
    formula = bubble_ratio(layout.order_name, layout.pipeline) if len(set(work.values())) == 1 else None
    if formula is not None:
        return formula
    return timetable(orders(layout.order_name, layout.pipeline), EQUAL, work=work).idle_ratio


def _axis_seconds(traffic: Traffic, machine: Machine, rank: int) -> Mapping[str, float]:
    seconds: dict[str, float] = {}
    for volume in volumes(traffic, rank=rank):
        near = _group_span(traffic.layout, volume.axis) <= machine.ranks_per_node
        speed = machine.node_bytes_per_second if near else machine.network_bytes_per_second
        seconds[volume.axis] = seconds.get(volume.axis, 0.0) + volume.wire_bytes / speed
    return seconds


def _slowest_rank(ranks: list[Mapping[str, float]]) -> Mapping[str, float]:
    return max(ranks, key=lambda axes: sum(axes.values()))


def _group_span(layout: Layout, axis: str) -> int:
    """Number of consecutive ranks that a group of the axis spans. tp is innermost, then cp, dp, pp."""
    reach = layout.tp
    for name, size in (("cp", layout.cp), ("dp", layout.dp), ("pp", layout.pp)):
        if axis == "tp":
            return reach
        reach *= size
        if axis == name:
            return reach
    return layout.shards * layout.tp
