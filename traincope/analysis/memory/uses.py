"""Memory of each rank: last, peak, median after each phase, and steady growth."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.memory.growth import enough, exhausted_at, grows, settled, slope
from traincope.arrays import Ints, chosen
from traincope.events import NO_STEP, Kind, MemoryMeasure, Phase
from traincope.timeline import RankTimeline, Timeline

GROWING = (MemoryMeasure.RESIDENT, MemoryMeasure.ALLOCATED, MemoryMeasure.LOADER_WORKERS)
"""Measures that fall when memory is released: only these can show a leak."""
OF_HOST = (MemoryMeasure.RESIDENT, MemoryMeasure.LOADER_WORKERS)
"""Those that the ranks of a host have of one memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """One measure of one rank."""

    rank: int
    measure: str
    """One of `traincope.events.MemoryMeasure`."""
    last_bytes: int
    peak_bytes: int
    """Largest sample. Between samples it may have been more, except for peak measures."""
    phases: Mapping[str, int]
    """Phase -> median bytes at its end."""
    growth_bytes_per_step: float | None
    """Slope over the steps after warm-up; None: too few samples."""
    leak: bool | None
    """The growth is steady and large; None: not judged, because of too few samples or of a measure that never falls."""
    exhausted_at_step: int | None = None
    """Step by which the growth exhausts the memory of the host or GPU, at the latest: what other processes take is not
    counted. None: no leak, or the size of the memory is unknown."""
    exhausted_in_ns: int | None = None
    """Time until then after the last sample, at the rate of the samples."""


def memory(timeline: Timeline) -> tuple[MemoryUse, ...]:
    """Every measure of every rank, by rank; empty without memory records."""
    uses = [use for rank in timeline.ranks for use in _uses(rank)]
    return tuple(_with_end(use, uses, timeline) if use.leak else use for use in uses)


def host_share(timeline: Timeline) -> Mapping[int, float]:
    """Rank -> share of its host's memory that the ranks there held at their last samples, if known."""
    info = {rank.rank: rank.info for rank in timeline.run.ranks}
    held: dict[str, int] = defaultdict(int)
    for rank in timeline.ranks:
        for measure, records in by_measure(rank):
            if measure == MemoryMeasure.RESIDENT:
                held[info[rank.rank].host.name] += int(records["value"][-1])
    shares = {}
    for number, about in info.items():
        limit = about.device.get("memory_bytes")
        if isinstance(limit, int) and limit > 0 and held[about.host.name]:
            shares[number] = held[about.host.name] / limit
    return shares


def by_measure(rank: RankTimeline) -> Iterator[tuple[str, NDArray[np.void]]]:
    """Yield the MEMORY records of each measure, in order of time."""
    records = rank.of_kind(Kind.MEMORY)
    for number in np.unique(records["name"]).tolist():
        yield rank.name(number), chosen(records, records["name"] == number)


def _uses(rank: RankTimeline) -> Iterator[MemoryUse]:
    for measure, records in by_measure(rank):
        steps, values = settled(*_after_steps(records))
        yield MemoryUse(
            rank=rank.rank,
            measure=measure,
            last_bytes=int(records["value"][-1]),
            peak_bytes=int(records["value"].max()),
            phases=_phases(records),
            growth_bytes_per_step=slope(steps, values) if enough(steps) else None,
            leak=grows(steps, values) if measure in GROWING and enough(steps) else None,
        )


def _after_steps(records: NDArray[np.void]) -> tuple[Ints, Ints]:
    """Steps and values of the samples between steps."""
    chosen = records[(records["phase"] == Phase.NONE) & (records["step"] != NO_STEP)]
    return chosen["step"].astype(np.int64), chosen["value"].astype(np.int64)


def _phases(records: NDArray[np.void]) -> dict[str, int]:
    phases = (Phase(number) for number in np.unique(records["phase"]).tolist() if number != Phase.NONE)
    return {
        phase.name.lower(): round(float(np.median(records["value"][records["phase"] == phase]))) for phase in phases
    }


def _with_end(use: MemoryUse, uses: list[MemoryUse], timeline: Timeline) -> MemoryUse:
    """Add when the growth exhausts the memory."""
    at_step = _exhausted_at(use, uses, timeline)
    if at_step is None:
        return use
    rank = next(each for each in timeline.ranks if each.rank == use.rank)
    records = rank.of_kind(Kind.MEMORY)
    records = records[(records["phase"] == Phase.NONE) & (records["step"] != NO_STEP)]
    first, last = records[0], records[-1]
    step_ns = int(last["start_ns"] - first["start_ns"]) / max(int(last["step"] - first["step"]), 1)
    return replace(use, exhausted_at_step=at_step, exhausted_in_ns=round((at_step - int(last["step"])) * step_ns))


def _exhausted_at(use: MemoryUse, uses: list[MemoryUse], timeline: Timeline) -> int | None:
    """On a host, the growing ranks share its memory. Each GPU has its own."""
    hosts = {rank.rank: rank.info.host for rank in timeline.run.ranks}
    device = next(rank.info.device for rank in timeline.run.ranks if rank.rank == use.rank)
    of_host = use.measure in OF_HOST
    limit = device.get("memory_bytes" if of_host else "gpu_memory_bytes")
    if not use.leak or not isinstance(limit, int):
        return None
    peers = [
        other
        for other in uses
        if other.measure == use.measure and (hosts[other.rank] == hosts[use.rank] if of_host else other is use)
    ]
    return exhausted_at(
        _last_step(timeline, use.rank),
        held_bytes=sum(other.last_bytes for other in peers),
        bytes_per_step=sum(other.growth_bytes_per_step or 0.0 for other in peers if other.leak),
        limit_bytes=limit,
    )


def _last_step(timeline: Timeline, rank: int) -> int:
    records = next(each for each in timeline.ranks if each.rank == rank).of_kind(Kind.MEMORY)
    return int(records["step"].max(initial=0))
