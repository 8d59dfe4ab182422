"""What was looked at once a step, as series: memory, what the training logged, what the GPUs read."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.experts import DROPPED, PADDING, TOKENS
from traincope.events import NO_STEP, Kind, Phase
from traincope.timeline import RankTimeline, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """One name on one rank."""

    rank: int
    name: str
    steps: NDArray[np.int64]
    """Rising; looks outside of steps are left out."""
    values: NDArray[np.float64]
    """Beside `steps`: bytes of memory, of a GPU in the unit of `GPU_READINGS`, else as it was logged: maybe NaN."""


def memory_samples(timeline: Timeline) -> tuple[Samples, ...]:
    """Bytes of each measure of each rank when a step was over."""
    return tuple(found for rank in timeline.ranks for found in _samples(rank, Kind.MEMORY))


def logged_samples(timeline: Timeline) -> tuple[Samples, ...]:
    """What `run.log()` was given, but for what `experts` reads."""
    found = (one for rank in timeline.ranks for one in _samples(rank, Kind.SCALAR))
    return tuple(one for one in found if one.name not in (PADDING, DROPPED) and not TOKENS.fullmatch(one.name))


def gpu_samples(timeline: Timeline) -> tuple[Samples, ...]:
    """What each rank's GPU read, every few seconds, in the step that was over then."""
    return tuple(found for rank in timeline.ranks for found in _samples(rank, Kind.GPU))


def _samples(rank: RankTimeline, kind: Kind) -> Iterator[Samples]:
    records = rank.of_kind(kind)
    records = records[(records["phase"] == Phase.NONE) & (records["step"] != NO_STEP)]
    for number in np.unique(records["name"]).tolist():
        own = records[records["name"] == number]
        own = own[np.argsort(own["step"], kind="stable")]
        values = np.ascontiguousarray(own["value"])
        yield Samples(
            rank=rank.rank,
            name=rank.name(number),
            steps=own["step"].astype(np.int64),
            values=values.view(np.float64).copy() if kind == Kind.SCALAR else values.astype(np.float64),
        )
