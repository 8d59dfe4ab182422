"""Memory of each rank: last, peak, median after each phase, and steady growth."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.arrays import Ints
from traincope.events import Kind, Phase
from traincope.timeline import RankTimeline, Timeline

RESIDENT = "resident"
"""Memory of the process on the host."""
LEAKING = (RESIDENT, "allocated")
"""Measures that fall when memory is released: only these can show a leak."""
MIN_STEPS = 64
"""Fewest steps for a leak; fewer may be warm-up."""
WARM_UP = 4
"""One in this many samples, the first ones, is left out: caches fill."""
PARTS = 8
LEAK_RATIO = 0.05
"""Growth, as a share of the first value, from which it is a leak."""
MAX_POINTS = 256
"""Number of samples for a slope; more are thinned out evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """One measure of one rank."""

    rank: int
    measure: str
    """`resident`, `peak resident`; of a GPU `allocated`, `reserved`, `peak allocated`."""
    last_bytes: int
    peak_bytes: int
    """Largest sample. Between samples it may have been more, except for peak measures."""
    phases: Mapping[str, int]
    """Phase -> median at its end."""
    growth_bytes_per_step: float | None
    """Slope over the steps after warm-up; None: too few steps."""
    leak: bool
    """The growth is steady and large."""


def memory(timeline: Timeline) -> tuple[MemoryUse, ...]:
    """Every measure of every rank, by rank; empty without memory records."""
    return tuple(use for rank in timeline.ranks for use in _uses(rank))


def host_share(timeline: Timeline) -> Mapping[int, float]:
    """Rank -> share of its host's memory that the ranks there held at their last samples, if known."""
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
    """Median slope of all pairs, per step (Theil 1950, Sen 1968). Up to 29 % of outliers do not move it."""
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), MAX_POINTS)).astype(np.int64))
    first, second = np.triu_indices(len(chosen), k=1)
    steps = chosen[second] - chosen[first]
    return float(np.median((values[chosen[second]] - values[chosen[first]]) / steps)) if len(steps) else 0.0


def is_leak(values: NDArray[np.int64]) -> bool:
    """True if settled values, one per step, grow steadily and by much.

    The medians of eight parts each lie above the one before, which noise around a level does once in 8! = 40,320 times.
    The second half grows at least half as much as the first, so the growth does not level off. The total growth is at
    least `LEAK_RATIO` of the first part.
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
        enough = len(settled) >= MIN_STEPS
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
    """One value per step, without warm-up."""
    values: Ints = records["value"][records["phase"] == Phase.NONE]
    return values[len(values) // WARM_UP :]


def _phases(records: NDArray[np.void]) -> dict[str, int]:
    phases = (Phase(number) for number in np.unique(records["phase"]).tolist() if number != Phase.NONE)
    return {
        phase.name.lower(): round(float(np.median(records["value"][records["phase"] == phase]))) for phase in phases
    }
