"""The kernel's counts of a straggler's thread and of its peers': waits for a core, and pages read from a disk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincope.events import Kind, Usage
from traincope.timeline import RankTimeline

SHARE = 0.5
"""Smallest share of the lateness that a cause must explain. Ours."""
PAGE_NS = 100_000
"""Time in which a fast disk delivers a page: about the latency of one read of an NVMe drive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUsage:
    """Means per step of a straggler, and the medians of its peers' means."""

    core_wait_ns: float
    """Time in which its thread could run and had no core."""
    peers_core_wait_ns: float
    major_faults: float
    """Number of pages that were read from a disk before its thread could go on."""
    peers_major_faults: float

    def lacks_core(self, late_ns: float) -> bool:
        """Return whether its waits for a core explain a lateness."""
        return self.core_wait_ns - self.peers_core_wait_ns >= SHARE * late_ns

    def lacks_memory(self, late_ns: float) -> bool:
        """Return whether its reads of pages explain a lateness even on a fast disk."""
        return (self.major_faults - self.peers_major_faults) * PAGE_NS >= SHARE * late_ns


def host_usage(
    rank: RankTimeline, peers: Sequence[RankTimeline], *, between_ns: tuple[int, int], step_ns: float
) -> HostUsage | None:
    """Compare a rank with its peers between two times. `step_ns`: mean length of a step. None without readings."""
    own = _rates(rank, between_ns)
    others = [rates for peer in peers if (rates := _rates(peer, between_ns)) is not None]
    if own is None or not others:
        return None

    def usual(usage: Usage) -> float:
        return float(np.median([rates[usage] for rates in others])) * step_ns

    return HostUsage(
        core_wait_ns=own[Usage.CORE_WAIT] * step_ns,
        peers_core_wait_ns=usual(Usage.CORE_WAIT),
        major_faults=own[Usage.MAJOR_FAULTS] * step_ns,
        peers_major_faults=usual(Usage.MAJOR_FAULTS),
    )


def _rates(rank: RankTimeline, between_ns: tuple[int, int]) -> Mapping[Usage, float] | None:
    """Return the growth of each total per ns between the first and the last reading in this time."""
    records = rank.of_kind(Kind.USAGE)
    first_ns, last_ns = between_ns
    records = records[(records["start_ns"] >= first_ns) & (records["start_ns"] <= last_ns)]
    rates = {}
    for number in np.unique(records["name"]).tolist():
        read = records[records["name"] == number]
        passed_ns = int(read["start_ns"][-1] - read["start_ns"][0])
        if passed_ns > 0:
            rates[Usage(rank.name(number))] = int(read["value"][-1] - read["value"][0]) / passed_ns
    return rates if len(rates) == len(Usage) else None
