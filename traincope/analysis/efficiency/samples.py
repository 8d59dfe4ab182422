"""Series of values sampled once per step: memory, logged values, GPU measurements."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.efficiency.experts import DROPPED, PADDING, TOKENS
from traincope.events import GPU_ENERGY, HELD, NO_STEP, Kind, Phase
from traincope.timeline import RankTimeline, Timeline

MAX_NAMES = 4
"""Logged values in a figure."""
LOSS = "loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of one name on one rank."""

    rank: int
    name: str
    steps: NDArray[np.int64]
    """Step numbers, ascending. Samples outside of steps are left out."""
    values: NDArray[np.float64]
    """One value for each of `steps`: bytes of memory, GPU values in the unit of `GPU_SAMPLE_UNITS`, or the logged
    value, which may be NaN."""


def memory_samples(timeline: Timeline) -> tuple[Samples, ...]:
    """Bytes of each total of each rank's memory at the end of a step, without the uses that make it up."""
    every = (samples for rank in timeline.ranks for samples in _samples(rank, Kind.MEMORY))
    return tuple(samples for samples in every if samples.name not in HELD)


def logged_samples(timeline: Timeline) -> tuple[Samples, ...]:
    """Values given to `run.log()`, without those that `experts` reads."""
    every = (samples for rank in timeline.ranks for samples in _samples(rank, Kind.SCALAR))
    return tuple(
        samples for samples in every if samples.name not in (PADDING, DROPPED) and not TOKENS.fullmatch(samples.name)
    )


def names_to_draw(samples: Sequence[Samples]) -> tuple[str, ...]:
    """The first four names: those that contain `loss`, then the others in order of logging."""
    names = dict.fromkeys(sample.name for sample in samples)
    return tuple(sorted(names, key=lambda name: LOSS not in name.lower()))[:MAX_NAMES]


def gpu_samples(timeline: Timeline) -> tuple[Samples, ...]:
    """Values of each rank's GPU, sampled every few seconds, by the step that had just ended, without energy."""
    every = (samples for rank in timeline.ranks for samples in _samples(rank, Kind.GPU))
    return tuple(samples for samples in every if samples.name != GPU_ENERGY)


def _samples(rank: RankTimeline, kind: Kind) -> Iterator[Samples]:
    records = rank.of_kind(kind)
    records = records[(records["phase"] == Phase.NONE) & (records["step"] != NO_STEP)]
    for number in np.unique(records["name"]).tolist():
        chosen = records[records["name"] == number]
        chosen = chosen[np.argsort(chosen["step"], kind="stable")]
        values = np.ascontiguousarray(chosen["value"])
        yield Samples(
            rank=rank.rank,
            name=rank.name(number),
            steps=chosen["step"].astype(np.int64),
            values=values.view(np.float64).copy() if kind == Kind.SCALAR else values.astype(np.float64),
        )
