"""Changes of the configuration that make the pipeline idle less, each with the idle share that its timetable predicts.

The total work of a step stays as it was measured. So a prediction does not know that small microbatches run less
efficiently, or that more stages per rank send more messages.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from traincope.errors import UsageError
from traincope.plan.pipeline.orders import SCHEDULES, Shape
from traincope.plan.pipeline.stage_layers import is_possible, stage_layers
from traincope.preflight.judging.costs import ConfiguredPipeline, Split, StageCosts, played_out, span_seconds

WORTH_RATIO = 0.01
"""A remedy must lower the idle share by this much."""
CHUNKS = (2, 3, 4)
"""Stages per rank that interleaving tries."""
LAYERS = "layers of each stage"
"""Name of the setting of rebalanced stages."""
MAX_GROWTH = 64
"""Largest multiple of the microbatches that is tried."""


class Change(StrEnum):
    MICROBATCHES = "more microbatches"
    INTERLEAVING = "interleaving"
    ZERO_BUBBLE = "zero bubble"
    REBALANCING = "rebalanced stages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change with its predicted effect."""

    change: Change
    settings: Mapping[str, int | str]
    """Keys of the configuration -> new values. `traincope train` has no key for the layers of a stage."""
    bubble_ratio: float
    """Predicted idle share of the pipeline's time."""
    saving_ratio: float
    """Predicted share of the pipeline's time per sequence that the change saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """A pipeline to play out."""

    schedule: str
    shape: Shape
    split: Split
    growth: float = 1.0
    """Sequences of a round, as a multiple of the configured ones."""


def remedies(pipeline: ConfiguredPipeline, costs: StageCosts, *, target_ratio: float) -> tuple[Remedy, ...]:
    """The best change of each kind, the largest predicted saving first; `target_ratio` is the bubble to get below."""
    own = _Variant(schedule=pipeline.schedule, shape=pipeline.shape, split=pipeline.split)
    now, span = _played(own, pipeline, costs)

    def remedy(change: Change, variant: _Variant, settings: Mapping[str, int | str]) -> Remedy | None:
        ratio, seconds = _played(variant, pipeline, costs)
        if ratio > now - WORTH_RATIO:
            return None
        return Remedy(
            change=change, settings=settings, bubble_ratio=ratio, saving_ratio=1 - seconds / variant.growth / span
        )

    best = []
    for change, variants in (
        (Change.MICROBATCHES, _more_microbatches(pipeline)),
        (Change.INTERLEAVING, _interleaved(pipeline)),
        (Change.ZERO_BUBBLE, _zero_bubble(pipeline)),
        (Change.REBALANCING, _rebalanced(pipeline, costs)),
    ):
        chosen: Remedy | None = None
        for variant, settings in variants:
            tried = remedy(change, variant, settings)
            if tried is not None and (chosen is None or tried.bubble_ratio < chosen.bubble_ratio):
                chosen = tried
                if tried.bubble_ratio <= target_ratio:
                    break
        best += [] if chosen is None else [chosen]
    return tuple(sorted(best, key=lambda each: -each.saving_ratio))


def _played(variant: _Variant, pipeline: ConfiguredPipeline, costs: StageCosts) -> tuple[float, float]:
    """Idle share and seconds of a round."""
    shape, schedule = variant.shape, variant.schedule
    smaller = variant.growth * pipeline.shape.microbatches / shape.microbatches
    whole = costs.stage_seconds(variant.split, schedule=schedule, shape=shape)
    seconds = {stage: each * smaller for stage, each in whole.items()}
    table = played_out(seconds, schedule=schedule, shape=shape, times=costs.times)
    return table.idle_ratio, span_seconds(table, seconds, times=costs.times)


def _more_microbatches(pipeline: ConfiguredPipeline) -> Iterator[tuple[_Variant, Mapping[str, int | str]]]:
    """Smaller microbatches of the same batch; without any, a larger batch."""
    now = pipeline.shape.microbatches
    numbers = [number for number in range(now + 1, pipeline.sequences + 1) if pipeline.sequences % number == 0]
    for number in numbers[: MAX_GROWTH // 2]:
        variant = _resized(pipeline, microbatches=number)
        if variant is not None:
            yield variant, {"parallel.microbatches": number}
    for growth in range(2, 0 if numbers else MAX_GROWTH + 1):
        variant = _resized(pipeline, microbatches=growth * now, growth=growth)
        if variant is not None:
            yield variant, {"parallel.microbatches": growth * now, "train.batch": growth * pipeline.batch}


def _resized(pipeline: ConfiguredPipeline, *, microbatches: int, growth: int = 1) -> _Variant | None:
    shape = pipeline.shape
    return _variant(
        pipeline, pipeline.schedule, microbatches=microbatches, chunks=shape.chunks, split=pipeline.split, growth=growth
    )


def _interleaved(pipeline: ConfiguredPipeline) -> Iterator[tuple[_Variant, Mapping[str, int | str]]]:
    for chunks in CHUNKS:
        variant = _variant(pipeline, "interleaved", microbatches=pipeline.shape.microbatches, chunks=chunks)
        if variant is not None and (pipeline.schedule != "interleaved" or chunks > pipeline.shape.chunks):
            yield variant, {"parallel.schedule": "interleaved", "parallel.virtual": chunks}


def _zero_bubble(pipeline: ConfiguredPipeline) -> Iterator[tuple[_Variant, Mapping[str, int | str]]]:
    for name, schedule in SCHEDULES.items():
        if schedule.splits_backward and not pipeline.ddp and name != pipeline.schedule:
            variant = _variant(pipeline, name, microbatches=pipeline.shape.microbatches, chunks=schedule.min_chunks)
            if variant is not None:
                yield variant, {"parallel.schedule": name, "parallel.virtual": schedule.min_chunks}


def _rebalanced(pipeline: ConfiguredPipeline, costs: StageCosts) -> Iterator[tuple[_Variant, Mapping[str, int | str]]]:
    """The split of the layers with the shortest longest stage."""
    split = shortest_split(pipeline, costs)
    if split != pipeline.split:
        words = ", ".join(str(len(layers)) for layers in split)
        yield (
            _Variant(schedule=pipeline.schedule, shape=pipeline.shape, split=split),
            {LAYERS: words},
        )


def shortest_split(pipeline: ConfiguredPipeline, costs: StageCosts) -> Split:
    """Give one layer after the other to the stage that is shortest with it: optimal, because layers are equal.

    Every stage between the first and the last keeps a layer.
    """
    number = pipeline.shape.stages
    empty = costs.stage_seconds((range(0),) * number, schedule=pipeline.schedule, shape=pipeline.shape)
    single = costs.stage_seconds((range(1),) * number, schedule=pipeline.schedule, shape=pipeline.shape)
    each = {stage: single[stage] - empty[stage] for stage in empty}
    counts = [int(0 < stage < number - 1) for stage in range(number)]
    for _ in range(pipeline.layers - sum(counts)):
        shortest = min(range(number), key=lambda stage: (empty[stage] + each[stage] * (counts[stage] + 1), stage))
        counts[shortest] += 1
    starts = [sum(counts[:stage]) for stage in range(number)]
    return tuple(range(start, start + count) for start, count in zip(starts, counts, strict=True))


def _variant(
    pipeline: ConfiguredPipeline,
    schedule: str,
    *,
    microbatches: int,
    chunks: int,
    split: Split | None = None,
    growth: int = 1,
) -> _Variant | None:
    """None if the schedule, the number of layers, or that of recomputed ones does not allow this size."""
    try:
        shape = Shape(ranks=pipeline.shape.ranks, microbatches=microbatches, chunks=chunks)
    except UsageError:
        return None
    if SCHEDULES[schedule].refusal(shape) is not None:
        return None
    layers = stage_layers(pipeline.layers, schedule=schedule, shape=shape) if split is None else split
    if not is_possible(layers) or max(map(len, layers)) < (pipeline.recompute_layers or 0):
        return None
    return _Variant(schedule=schedule, shape=shape, split=layers, growth=growth)
