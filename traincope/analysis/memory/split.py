"""Use of a rank's memory: parameters, gradients, optimizer state, communication buffers, activations.

The recorder writes the total and the bytes of tensors by their use at one instant, between steps and after phases.
On a GPU the total is what torch's allocator holds:

    reserved = parameters + gradients + optimizer state + communication buffers + activations + unknown + fragmentation

Fragmentation is what the allocator holds and no tensor uses. Of the other tensors, those that were alive between steps
too are unknown (batches, buffers of modules, a leak), and the rest are activations: what forward keeps for backward,
and temporary tensors. On a CPU the total is the process's resident memory. No allocator counts there, so activations
and fragmentation are not known, and are within the unknown part.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from traincope.analysis.memory.uses import by_measure
from traincope.arrays import chosen
from traincope.events import CLEAN, HELD, NO_STEP, MemoryMeasure, Phase
from traincope.timeline import RankTimeline, Timeline

ACTIVATIONS, FRAGMENTATION, UNKNOWN_USE = "activations", "fragmentation", "unknown"
ON_CPU = "a CPU has no allocator that counts activations and fragmentation: both are within the unknown part"
NOT_RESIDENT = "the tensors are larger than the total: some of their memory was never written, or lies outside of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySplit:
    """A rank's memory at one instant. The known parts, with `unknown_bytes`, sum to `total_bytes`."""

    rank: int
    step: int | None
    phase: str | None
    """The phase that had just ended; None: between steps."""
    measure: str
    """Measure of the total: `reserved` on a GPU, `resident` on a CPU."""
    total_bytes: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    buffers_bytes: int
    """Communication buffers."""
    activations_bytes: int | None
    fragmentation_bytes: int | None
    unknown_bytes: int | None
    """None: the tensors are larger than the total."""
    reason: str | None
    """Reason why a part is None."""

    @property
    def parts(self) -> Mapping[str, int]:
        """Use -> bytes, of the known parts."""
        parts = {
            MemoryMeasure.PARAMETERS: self.parameters_bytes,
            MemoryMeasure.GRADIENTS: self.gradients_bytes,
            MemoryMeasure.OPTIMIZER: self.optimizer_bytes,
            MemoryMeasure.BUFFERS: self.buffers_bytes,
            ACTIVATIONS: self.activations_bytes,
            FRAGMENTATION: self.fragmentation_bytes,
            UNKNOWN_USE: self.unknown_bytes,
        }
        return {str(use): num_bytes for use, num_bytes in parts.items() if num_bytes is not None}


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """The measures of one instant."""

    at_ns: int
    step: int
    phase: Phase
    values: Mapping[str, int]

    @cached_property
    def held(self) -> tuple[int, ...]:
        return tuple(self.values[measure] for measure in HELD)

    @property
    def on_gpu(self) -> bool:
        return MemoryMeasure.RESERVED in self.values

    @property
    def live(self) -> int:
        """Bytes of live tensors on a GPU; of everything on a CPU."""
        return self.values[MemoryMeasure.ALLOCATED if self.on_gpu else MemoryMeasure.RESIDENT]

    @property
    def rest(self) -> int:
        """Bytes that are not of the model's tensors."""
        return self.live - sum(self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSplits:
    """Splits of one rank at the instants that matter."""

    peak: MemorySplit
    """At the instant with the most live memory."""
    early: Mapping[str, int]
    """Use -> its largest bytes in the first steps after warm-up; empty if none was read."""
    last: MemorySplit
    """At the last reading: of a rank that failed, when it failed."""


def memory_splits(timeline: Timeline) -> tuple[RankSplits, ...]:
    """Splits of each rank whose tensors were counted; empty for runs of an older recorder."""
    return tuple(splits for rank in timeline.ranks if (splits := _rank_splits(rank)) is not None)


FIRST_STEPS = 3
"""Steps that the recorder reads in full at the start. The first is warm-up: the optimizer's state appears in it."""


def _rank_splits(rank: RankTimeline) -> RankSplits | None:
    readings = list(_readings(rank))
    if not readings:
        return None
    failed = rank.ending not in (CLEAN, None)
    between = [each for each in (readings[:-1] if failed else readings) if each.phase == Phase.NONE]
    splits = [_split(rank.rank, reading, between) for reading in readings]
    early: dict[str, int] = {}
    for reading, split in zip(readings[: -1 if failed else None], splits, strict=False):
        if 0 < reading.step < FIRST_STEPS:
            early |= {use: max(num_bytes, early.get(use, 0)) for use, num_bytes in split.parts.items()}
    peak = max(range(len(readings)), key=lambda at: readings[at].live)
    return RankSplits(peak=splits[peak], early=early, last=splits[-1])


def _readings(rank: RankTimeline) -> Iterator[_Reading]:
    """Yield the instants with a total and the bytes of tensors, in order."""
    measures = list(by_measure(rank))
    held = [records["start_ns"] for measure, records in measures if measure in HELD]
    if len(held) < len(HELD):
        return
    values: dict[int, dict[str, int]] = {at_ns: {} for at_ns in reduce(np.intersect1d, held).tolist()}
    about: dict[int, tuple[int, int]] = {}
    for measure, records in measures:
        records = chosen(records, np.isin(records["start_ns"], list(values)))
        for at_ns, num_bytes, step, phase in zip(
            *(records[field].tolist() for field in ("start_ns", "value", "step", "phase")), strict=True
        ):
            values[at_ns][measure] = num_bytes
            about[at_ns] = step, phase
    for at_ns, measured in values.items():
        total = MemoryMeasure.ALLOCATED in measured and MemoryMeasure.RESERVED in measured
        if total or MemoryMeasure.RESIDENT in measured:
            step, phase = about[at_ns]
            yield _Reading(at_ns=at_ns, step=step, phase=Phase(phase), values=measured)


def _split(rank: int, reading: _Reading, between: list[_Reading]) -> MemorySplit:
    parameters, gradients, optimizer, buffers = reading.held
    unknown, activations, reason = _others(reading, between)
    reserved = reading.values.get(MemoryMeasure.RESERVED)
    return MemorySplit(
        rank=rank,
        step=None if reading.step == NO_STEP else reading.step,
        phase=None if reading.phase == Phase.NONE else reading.phase.name.lower(),
        measure=str(MemoryMeasure.RESERVED if reading.on_gpu else MemoryMeasure.RESIDENT),
        total_bytes=reading.live if reserved is None else reserved,
        parameters_bytes=parameters,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        buffers_bytes=buffers,
        activations_bytes=activations,
        fragmentation_bytes=None if reserved is None else reserved - reading.live,
        unknown_bytes=unknown,
        reason=reason,
    )


def _others(reading: _Reading, between: list[_Reading]) -> tuple[int | None, int | None, str | None]:
    """Unknown bytes, activations, and why one is None. `between`: the readings between steps.

    Tensors that were alive at the last instant between steps before this one are not activations.
    """
    if reading.rest < 0:
        return None, None, NOT_RESIDENT
    if not reading.on_gpu:
        return reading.rest, None, ON_CPU
    before = [each for each in between if each.at_ns <= reading.at_ns]
    unknown = min(reading.rest, max(before[-1].rest, 0)) if before else 0
    return unknown, reading.rest - unknown, None
