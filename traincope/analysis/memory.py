"""Memory of each rank: last, peak, what each phase leaves behind, and whether it grows without end."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.events import Kind, Phase
from traincope.timeline import RankTimeline, Timeline

Ints = NDArray[np.int64]

RESIDENT = "resident"
"""Measure of a process on a CPU."""
LEAKING = (RESIDENT, "allocated")
"""Measures that fall when memory is given back: only those can show a leak."""
FEWEST_STEPS = 64
"""Fewer than this are too few to tell a leak from settling in."""
WARM_UP = 4
"""One in so many of the samples, the first, is left out: caches fill."""
PARTS = 8
LEAK_RATIO = 0.05
"""Growth, as a share of what it was, from which a leak is told."""
MOST_POINTS = 256
"""Samples that a slope is taken over; more are thinned out evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """One measure of one rank."""

    rank: int
    measure: str
    """`resident`, `peak resident`; of a GPU `allocated`, `reserved`, `peak allocated`."""
    last_bytes: int
    peak_bytes: int
    """The largest that was seen; between two looks it may have been more, but for a measure that is a peak."""
    phases: Mapping[str, int]
    """Phase -> median of what was there when it ended."""
    growth_bytes_per_step: float | None
    """Slope over the steps after warming up; None: too few."""
    leak: bool
    """The growth is steady and large."""


def memory(timeline: Timeline) -> tuple[MemoryUse, ...]:
    """Every measure of every rank, by rank; empty where none was recorded."""
    return tuple(use for rank in timeline.ranks for use in _uses(rank))


def host_share(timeline: Timeline) -> Mapping[int, float]:
    """Rank -> share of its host's memory that the ranks there held when each last looked, where that is known."""
    info = {rank.rank: rank.info for rank in timeline.run.ranks}
    held: dict[str, int] = defaultdict(int)
    for rank in timeline.ranks:
        for measure, records in _by_measure(rank):
            if measure == RESIDENT:
                held[info[rank.rank].host.name] += int(records["value"][-1])
    shares = {}
    for number, about in info.items():
        limit = about.device.get("memory_bytes")
        if isinstance(limit, int) and limit > 0 and held[about.host.name]:
            shares[number] = held[about.host.name] / limit
    return shares


def slope(values: NDArray[np.int64]) -> float:
    """Median slope of all pairs, a step the unit: Theil 1950, Sen 1968. Up to 29 % of wild values do not move it."""
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_POINTS)).astype(np.int64))
    first, second = np.triu_indices(len(chosen), k=1)
    steps = chosen[second] - chosen[first]
    return float(np.median((values[chosen[second]] - values[chosen[first]]) / steps)) if len(steps) else 0.0


def is_leak(values: NDArray[np.int64]) -> bool:
    """Whether values, one a step and settled, grow steadily and by much.

    The medians of eight parts each lie above the one before, which noise around a level does once in
    8! = 40,320 times; the second half grows at least half as much as the first, so that it is not
    coming to rest; all of it is at least `LEAK_RATIO` of the first part.
    """
    if len(values) < PARTS:
        return False
    medians = [float(np.median(part)) for part in np.array_split(values, PARTS)]
    middle = PARTS // 2
    early, late = medians[middle - 1] - medians[0], medians[-1] - medians[middle]
    return bool((np.diff(medians) > 0).all()) and late >= early / 2 and early + late >= LEAK_RATIO * medians[0]


def _uses(rank: RankTimeline) -> Iterator[MemoryUse]:
    for measure, records in _by_measure(rank):
        settled = _settled(records)
        enough = len(settled) >= FEWEST_STEPS
        yield MemoryUse(
            rank=rank.rank,
            measure=measure,
            last_bytes=int(records["value"][-1]),
            peak_bytes=int(records["value"].max()),
            phases=_phases(records),
            growth_bytes_per_step=slope(settled) if enough else None,
            leak=enough and measure in LEAKING and is_leak(settled),
        )


def _by_measure(rank: RankTimeline) -> Iterator[tuple[str, NDArray[np.void]]]:
    records = rank.of_kind(Kind.MEMORY)
    for number in np.unique(records["name"]).tolist():
        yield rank.name(number), records[records["name"] == number]


def _settled(records: NDArray[np.void]) -> Ints:
    """One value a step, without those in which it warmed up."""
    values: Ints = records["value"][records["phase"] == Phase.NONE]
    return values[len(values) // WARM_UP :]


def _phases(records: NDArray[np.void]) -> dict[str, int]:
    found = (Phase(number) for number in np.unique(records["phase"]).tolist() if number != Phase.NONE)
    return {phase.name.lower(): round(float(np.median(records["value"][records["phase"] == phase]))) for phase in found}
