"""The layers of each stage of a pipeline, as evenly as possible."""

from collections.abc import Mapping
from functools import lru_cache

from traincope.plan.pipeline.orders import SCHEDULES, Shape


@lru_cache(maxsize=1024)
def stage_layers(layers: int, *, schedule: str, shape: Shape) -> tuple[range, ...]:
    """Layers of every stage, lowest first.

    If they do not divide, some stages have one layer fewer than the others. The last stage comes first, because it also
    has the output and the loss; then the first stage, which has the embedding. So do the 126 layers of Llama 3 405B
    (Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2). Others follow from both ends inward, and no rank has two
    shorter stages while another has none. With few layers the first and the last stage have none.
    """
    each, shorter = -(-layers // shape.stages), -layers % shape.stages
    short = set(_shortened(schedule, shape)[:shorter])
    split, start = [], 0
    for stage in range(shape.stages):
        stop = start + each - (stage in short)
        split.append(range(start, stop))
        start = stop
    return tuple(split)


def is_possible(split: tuple[range, ...]) -> bool:
    """Return False if a stage between the first and the last has no layer, and so nothing to compute."""
    return all(split[1:-1]) and any(split)


def relative_work(split: tuple[range, ...]) -> Mapping[int, float]:
    """Stage -> its number of layers relative to the mean."""
    mean = split[-1].stop / len(split)
    return {stage: len(layers) / mean for stage, layers in enumerate(split)}


def _shortened(schedule: str, shape: Shape) -> list[int]:
    """All stages, in the order in which they have one layer fewer."""
    last = shape.stages - 1
    rank_of = {stage: rank for rank in range(shape.ranks) for stage in SCHEDULES[schedule].placement(rank, shape)}
    inward = sorted(range(shape.stages), key=lambda stage: (min(stage, last - stage), -stage))
    before = dict.fromkeys(range(shape.ranks), 0)
    rounds = {}
    for stage in inward:
        rounds[stage] = before[rank_of[stage]]
        before[rank_of[stage]] += 1
    return sorted(inward, key=rounds.__getitem__)
