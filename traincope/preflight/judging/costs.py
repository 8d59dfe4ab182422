"""Time of any stage of the configured pipeline, from the times of the stages that ran."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from traincope.plan.pipeline.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Times
from traincope.plan.pipeline.orders import SCHEDULES, Shape, orders
from traincope.plan.pipeline.schedule import Timetable, timetable
from traincope.plan.pipeline.stage_layers import stage_layers

Split = tuple[range, ...]
"""Layers of each stage, lowest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredPipeline:
    """The pipeline of the configuration."""

    schedule: str
    shape: Shape
    layers: int
    sequences: int
    """Sequences of one replica in one round of the schedule: what the microbatches divide."""
    batch: int
    """train.batch: sequences of a step, over all replicas."""
    rounds: int = 1
    """Rounds of the schedule in a step (train.accumulation)."""
    ddp: bool = False
    """Replicas by DDP, which cannot follow a schedule that splits backward."""
    recompute_layers: int | None = None
    """Layers of each stage that are recomputed. The largest stage must have as many. None: all."""

    @property
    def split(self) -> Split:
        return stage_layers(self.layers, schedule=self.schedule, shape=self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """Seconds of a layer, and what the first and the last stage have besides layers, per microbatch.

    The layer is the median of the stages between the first and the last. A pipeline of two stages has none: there the
    layer is the faster stage's, so a slow layer counts as something besides layers.
    """

    layer_seconds: float
    first_seconds: float
    last_seconds: float
    rank_factors: Mapping[int, float]
    """Rank of the pipeline -> multiple of the usual time of its layers."""
    times: Times
    """Relative times of F, I and W. Where only a whole backward ran, I and W are half of it each."""

    def stage_seconds(self, split: Split, *, schedule: str, shape: Shape) -> dict[int, float]:
        """Stage -> seconds of all its actions on one microbatch of the configured size."""
        result = {}
        for rank in range(shape.ranks):
            for stage in SCHEDULES[schedule].placement(rank, shape):
                seconds = self.layer_seconds * len(split[stage]) * self.rank_factors.get(rank, 1.0)
                seconds += self.first_seconds * (stage == 0) + self.last_seconds * (stage == len(split) - 1)
                result[stage] = seconds
        return result


def stage_costs(pipeline: ConfiguredPipeline, measured: Mapping[int, Mapping[str, float]]) -> StageCosts:
    """Costs from stage -> kind of action -> seconds. Every stage of the pipeline must be measured."""
    split, last = pipeline.split, pipeline.shape.stages - 1
    totals = {stage: total_seconds(kinds) for stage, kinds in measured.items()}
    inner = [stage for stage in totals if 0 < stage < last and split[stage]]
    per_layer = {stage: totals[stage] / len(split[stage]) for stage in totals if split[stage]}
    layer = median(per_layer[stage] for stage in inner) if inner else min(per_layer.values())
    factors = {}
    for rank in range(pipeline.shape.ranks):
        own = [stage for stage in SCHEDULES[pipeline.schedule].placement(rank, pipeline.shape) if stage in inner]
        if own:
            factors[rank] = median(per_layer[stage] for stage in own) / layer
    return StageCosts(
        layer_seconds=layer,
        first_seconds=max(totals[0] - layer * len(split[0]), 0.0),
        last_seconds=max(totals[last] - layer * len(split[last]), 0.0),
        rank_factors=factors,
        times=relative_times(measured),
    )


def total_seconds(kinds: Mapping[str, float]) -> float:
    """Seconds of a forward and a backward, which ran whole or in its two parts.

    ZB-V and DualPipeV run some backwards whole and others in parts.
    """
    parts = kinds.get(BACKWARD_INPUT, 0.0) + kinds.get(BACKWARD_WEIGHT, 0.0)
    return kinds.get(FORWARD, 0.0) + max(kinds.get(BACKWARD, 0.0), parts)


def relative_times(measured: Mapping[int, Mapping[str, float]]) -> Times:
    """Mean over the stages, relative to the forward."""
    sums = dict.fromkeys((FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT), 0.0)
    for kinds in measured.values():
        for kind, seconds in kinds.items():
            sums[kind] += seconds
    forward = sums[FORWARD]
    if sums[BACKWARD_INPUT] > 0 and sums[BACKWARD_WEIGHT] > 0:
        return Times(backward_input=sums[BACKWARD_INPUT] / forward, backward_weight=sums[BACKWARD_WEIGHT] / forward)
    return Times(backward_input=sums[BACKWARD] / 2 / forward, backward_weight=sums[BACKWARD] / 2 / forward)


def played_out(
    seconds: Mapping[int, float], *, schedule: str, shape: Shape, times: Times, transfer_seconds: float = 0.0
) -> Timetable:
    """Timetable of one round of the schedule whose stages take these seconds per microbatch."""
    mean = sum(seconds.values()) / len(seconds)
    return timetable(
        orders(schedule, shape),
        times,
        transfer=transfer_seconds / mean * times.total,
        work={stage: each / mean for stage, each in seconds.items()},
    )


def span_seconds(table: Timetable, seconds: Mapping[int, float], *, times: Times) -> float:
    """Seconds until the last action of the timetable of `played_out` ends."""
    mean = sum(seconds.values()) / len(seconds)
    return table.span / table.ticks * mean / times.total
