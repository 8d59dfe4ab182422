"""Energy of the GPUs: joules per step, by NVML's counter, and of each ledger term in proportion of its time.

The counter is read every few seconds. Between two readings it is interpolated, so the energy of a sum of steps is
known, and that of a single step shorter than a reading is the mean around it. The power of a GPU differs between
computing and waiting, and no reading is shorter than a term: the energy of a term by its time is an estimate.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.arrays import Bools, Ints
from traincope.events import GPU_ENERGY, Kind
from traincope.store.segments.evaluating import evaluation_intervals
from traincope.timeline import RankTimeline, Timeline
from traincope.units import numbers

KWH_JOULES = 3_600_000
MIN_READINGS = 10
"""Fewest readings that the measured steps must last: interpolation is wrong by up to one reading at their ends."""
NO_READINGS = "no energy of a GPU was recorded"
NO_STEP = "no complete step was recorded"
TOO_SHORT = f"the steps last less than {MIN_READINGS} readings of the counter"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEnergy:
    """Energy of one GPU in the steps that its readings cover."""

    ranks: tuple[int, ...]
    """Ranks that share the GPU."""
    joules: float
    ns: int
    """Time of these steps."""
    steps: int
    """Number of measured steps: those between the first and the last reading, without evaluation."""
    reading_ns: int
    """Median time between two readings of the counter."""

    @property
    def joules_per_step(self) -> float:
        return self.joules / self.steps

    @property
    def watts(self) -> float:
        """Mean power in these steps."""
        return self.joules / (self.ns / 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy of the job's GPUs in steps, by NVML's counter."""

    gpus: tuple[GpuEnergy, ...] = ()
    reason: str | None
    """Reason why the energy of the job is unknown."""
    steps: int = 0
    """Steps with and without detail, except the warm-up."""
    shares: Mapping[str, float | None] = field(default_factory=dict)
    """Ledger term -> its share of step time."""
    price_per_kwh: float | None = None
    currency: str | None = None
    """Currency of `price_per_kwh` and `money`, as USD; None without a price."""

    @property
    def joules_per_step(self) -> float | None:
        """Sum over GPUs; None if that of one GPU is unknown."""
        return None if self.reason else sum(gpu.joules_per_step for gpu in self.gpus)

    @property
    def watts(self) -> float | None:
        """Mean power in steps, summed over GPUs."""
        return None if self.reason else sum(gpu.watts for gpu in self.gpus)

    @property
    def kwh(self) -> float | None:
        """Energy of all steps except the warm-up."""
        each = self.joules_per_step
        return None if each is None else each * self.steps / KWH_JOULES

    @property
    def money(self) -> float | None:
        """Price of `kwh`."""
        return None if self.price_per_kwh is None or self.kwh is None else self.kwh * self.price_per_kwh

    @property
    def terms(self) -> Mapping[str, float | None] | None:
        """Ledger term -> joules per step, in proportion of its time: an estimate. They sum to `joules_per_step`."""
        each = self.joules_per_step
        if each is None:
            return None
        return {term: None if share is None else share * each for term, share in self.shares.items()}


OF_A_PART = Energy(reason="a part of a run has no energy")


def energy(timeline: Timeline, ledger: Ledger) -> Energy:
    """Measure the energy of the steps with and without detail that contain no evaluation."""
    steps = len({number for rank in ledger.ranks for number in rank.numbers[rank.timed].tolist()})
    shares = {term: ledger.share(term) for term in ledger.order}
    if not steps:
        return Energy(reason=NO_STEP)
    recorded = {rank.rank: rank for rank in timeline.ranks}
    gpus, unknown = [], []
    for ranks in _ranks_of_gpus(timeline, ledger):
        sharing = tuple(rank.rank for rank in ranks)
        known = [each for rank in ranks if (each := _measured(recorded[rank.rank], rank, sharing)) is not None]
        if known:
            gpus.append(max(known, key=lambda each: each.ns))
        else:
            unknown.append(recorded[ranks[0].rank])
    return Energy(gpus=tuple(gpus), reason=_reason(timeline, unknown), steps=steps, shares=shares)


def _reason(timeline: Timeline, unknown: Sequence[RankTimeline]) -> str | None:
    """Reason why the energy of the job is unknown, by the first GPU without it."""
    if not unknown:
        return None
    named = numbers([rank.rank for rank in unknown], "rank")
    if len(_readings(unknown[0])[0]) > 1:
        return f"{TOO_SHORT} ({named})"
    states = {rank.rank: rank.info.probes.get("hardware") for rank in timeline.run.ranks}
    state = states.get(unknown[0].rank)
    return f"{NO_READINGS} ({named}{'' if state is None else f'; hardware probe {state}'})"


def _ranks_of_gpus(timeline: Timeline, ledger: Ledger) -> list[list[RankLedger]]:
    """Group the ranks by their GPU. A rank whose GPU is unknown shares it with none."""
    devices = {rank.rank: rank.info.device.get("uuid") or f"of rank {rank.rank}" for rank in timeline.run.ranks}
    groups: dict[object, list[RankLedger]] = {}
    for rank in ledger.ranks:
        groups.setdefault(devices.get(rank.rank, f"of rank {rank.rank}"), []).append(rank)
    return list(groups.values())


def _measured(rank: RankTimeline, ledger: RankLedger, sharing: tuple[int, ...]) -> GpuEnergy | None:
    """The energy of the rank's GPU; None with fewer than two readings, or too few steps between them."""
    at_ns, used_mj = _readings(rank)
    if len(at_ns) < 2:
        return None
    timed = set(ledger.numbers[ledger.timed].tolist())
    steps = np.array([(step.start_ns, step.end_ns) for step in rank.steps if step.number in timed], dtype=np.int64)
    steps = steps.reshape(-1, 2)
    steps = steps[_covered(steps, at_ns, used_mj) & ~_evaluating(steps, rank)]
    reading_ns = int(np.median(np.diff(at_ns)))
    length_ns = int((steps[:, 1] - steps[:, 0]).sum())
    if length_ns < MIN_READINGS * reading_ns:
        return None
    begun, ended = (np.interp(steps[:, side], at_ns, used_mj - used_mj[0]) for side in (0, 1))
    joules = float((ended - begun).sum()) / 1e3
    return GpuEnergy(ranks=sharing, joules=joules, ns=length_ns, steps=len(steps), reading_ns=reading_ns)


def _readings(rank: RankTimeline) -> tuple[Ints, Ints]:
    """Times and values of the counter, in order of time."""
    records = rank.of_kind(Kind.GPU)
    names = [number for number in np.unique(records["name"]).tolist() if rank.name(number) == GPU_ENERGY]
    chosen = records[np.isin(records["name"], names)]
    _, first = np.unique(chosen["start_ns"], return_index=True)
    return chosen["start_ns"][first].astype(np.int64), chosen["value"][first].astype(np.int64)


def _covered(steps: Ints, at_ns: Ints, used_mj: Ints) -> Bools:
    """Mark the steps between the first and the last reading during which the counter was not reset."""
    inside: Bools = (steps[:, 0] >= at_ns[0]) & (steps[:, 1] <= at_ns[-1])
    for reset in np.flatnonzero(np.diff(used_mj) < 0).tolist():
        inside &= (steps[:, 1] <= at_ns[reset]) | (steps[:, 0] >= at_ns[reset + 1])
    return inside


def _evaluating(steps: Ints, rank: RankTimeline) -> Bools:
    """Mark the steps with an evaluation in between, which is not a part of the step."""
    marked = np.zeros(len(steps), dtype=bool)
    for start_ns, end_ns in _evaluations(rank):
        marked |= (steps[:, 0] < end_ns) & (steps[:, 1] > start_ns)
    return marked


def _evaluations(rank: RankTimeline) -> Iterator[tuple[int, int]]:
    yield from map(tuple, evaluation_intervals(rank.main, last_ns=rank.last_ns).tolist())
