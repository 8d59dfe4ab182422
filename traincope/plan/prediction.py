"""What a layout would take, from formulas alone: time of a step, MFU and cost, between two bounds.

    compute = executed FLOPs / (ranks x peak x efficiency), and with it the schedule's bubble
    best    = compute: all communication hides behind it
    worst   = compute + wire bytes / bandwidth on every axis: none of it does

The truth lies between; what share of peak the kernels reach is told, not known (`efficiency`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from traincope.errors import UsageError
from traincope.plan.actions import EQUAL
from traincope.plan.activations import Keeping
from traincope.plan.bubble import bubble_ratio
from traincope.plan.communication import Traffic, volumes
from traincope.plan.flops import step_flops
from traincope.plan.layout import Layout
from traincope.plan.memory import RankMemory, memory
from traincope.plan.orders import orders
from traincope.plan.precision import Precision
from traincope.plan.schedule import timetable
from traincope.plan.transformer import Transformer

HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What it would run on; raises UsageError for what cannot be."""

    peak_flops: float
    """Dense, of one device."""
    memory_bytes: int
    """Of one device."""
    ranks_per_node: int = 8
    node_bytes_per_second: float
    """That a rank sends to others of its node, one way."""
    network_bytes_per_second: float
    """And to other nodes."""
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
                raise UsageError(f"{name} = {getattr(self, name):g} must be more than 0")
        if not 0 < self.efficiency <= 1:
            raise UsageError(
                f"efficiency = {self.efficiency:g} must lie in (0, 1]: the share of peak that kernels reach"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of one layout."""

    ranks: int
    tokens_per_step: int
    model_flops: int
    bubble_ratio: float
    compute_seconds: float
    """With the bubble."""
    axis_seconds: Mapping[str, float]
    """Axis -> what the rank that sends most needs for it."""
    memory: tuple[RankMemory, ...]
    """Rank of the pipeline by rank."""
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
        """To train on so many tokens: best and worst."""
        steps = tokens / self.tokens_per_step
        return tuple(steps * seconds * self.ranks / HOUR_S for seconds in (self.best_seconds, self.worst_seconds))  # type: ignore[return-value]


def predict(
    shape: Transformer, *, layout: Layout, precision: Precision, keeping: Keeping, machine: Machine
) -> Prediction:
    """Raises UsageError for a layout that the model cannot have."""
    held = memory(shape, layout=layout, precision=precision, keeping=keeping)
    flops = step_flops(shape, batch=layout.batch, recompute=keeping.recompute)
    traffic = Traffic(shape=shape, layout=layout, precision=precision, recompute=keeping.recompute)
    bubble = _bubble(layout)
    compute = flops.hardware / (layout.ranks * machine.peak_flops * machine.efficiency) / (1 - bubble)
    axes = _busiest([_axis_seconds(traffic, machine, rank) for rank in range(layout.pp)])
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


def _bubble(layout: Layout) -> float:
    """By the schedule's formula; where it has none, its order played out with equal times."""
    if layout.pp == 1:
        return 0.0
    told = bubble_ratio(layout.order_name, layout.pipeline)
    return timetable(orders(layout.order_name, layout.pipeline), EQUAL).idle_ratio if told is None else told


def _axis_seconds(traffic: Traffic, machine: Machine, rank: int) -> Mapping[str, float]:
    seconds: dict[str, float] = {}
    for volume in volumes(traffic, rank=rank):
        near = _spans(traffic.layout, volume.axis) <= machine.ranks_per_node
        speed = machine.node_bytes_per_second if near else machine.network_bytes_per_second
        seconds[volume.axis] = seconds.get(volume.axis, 0.0) + volume.wire_bytes / speed
    return seconds


def _busiest(ranks: list[Mapping[str, float]]) -> Mapping[str, float]:
    return max(ranks, key=lambda axes: sum(axes.values()))


def _spans(layout: Layout, axis: str) -> int:
    """Consecutive ranks that a group of the axis reaches over: tp lies innermost, then cp, dp, pp."""
    reach = layout.tp
    for name, size in (("cp", layout.cp), ("dp", layout.dp), ("pp", layout.pp)):
        if axis == "tp":
            return reach
        reach *= size
        if axis == name:
            return reach
    return layout.shards * layout.tp
