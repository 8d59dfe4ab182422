"""The kernel's counts of a straggler's threads and of its peers': waits for a core, and pages read from a disk."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincope.analysis.ledger.host_shortages import PAGE_NS, usage_rates
from traincope.events import Usage
from traincope.timeline import RankTimeline

SHARE = 0.5
"""Smallest share of the lateness that a cause must explain. Ours."""
MORE_WORK = 1.25
"""CPU time relative to the peers' from which a thread has more work. The same work takes longer on a crowded core."""
NEEDED = {Usage.CORE_WAIT, Usage.MAJOR_FAULTS}
"""Counts without which nothing is compared. Older runs have only these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUsage:
    """The kernel's counts per step: means of a straggler's training thread, and the medians of its peers' means."""

    core_wait_ns: float
    """Time in which its thread could run and had no core."""
    peers_core_wait_ns: float
    major_faults: float
    """Number of pages that were read from a disk before its thread could go on."""
    peers_major_faults: float
    cpu_ns: float | None = None
    """Time in which its thread ran; None in older runs."""
    peers_cpu_ns: float | None = None

    def lacks_core(self, late_ns: float) -> bool:
        """Return whether its waits for a core explain a lateness.

        Where all threads wait, one with more work waits longer too: then its peers' waits count per CPU second.
        """
        ratio = 1.0 if not self.cpu_ns or not self.peers_cpu_ns else self.cpu_ns / self.peers_cpu_ns
        peers_ns = self.peers_core_wait_ns * (ratio if ratio >= MORE_WORK else 1.0)
        return self.core_wait_ns - peers_ns >= SHARE * late_ns

    def runs_longer(self, late_ns: float) -> bool:
        """Return whether its thread ran longer than its peers' by enough of a lateness. A wait for a core is no run."""
        if self.cpu_ns is None or self.peers_cpu_ns is None:
            return False
        return self.cpu_ns - self.peers_cpu_ns >= SHARE * late_ns

    def lacks_memory(self, late_ns: float) -> bool:
        """Return whether its reads of pages explain a lateness even on a fast disk."""
        return (self.major_faults - self.peers_major_faults) * PAGE_NS >= SHARE * late_ns


def host_usage(
    rank: RankTimeline, peers: Sequence[RankTimeline], *, between_ns: tuple[int, int], step_ns: float
) -> HostUsage | None:
    """Compare a rank with its peers between two times. `step_ns`: mean length of a step. None without readings."""
    own = usage_rates(rank, between_ns)
    others = [rates for peer in peers if (rates := usage_rates(peer, between_ns)).keys() >= NEEDED]
    if not own.keys() >= NEEDED or not others:
        return None
    timed = all(Usage.CPU_TIME in rates for rates in (own, *others))

    def usual(usage: Usage) -> float:
        return float(np.median([rates[usage] for rates in others])) * step_ns

    return HostUsage(
        core_wait_ns=own[Usage.CORE_WAIT] * step_ns,
        peers_core_wait_ns=usual(Usage.CORE_WAIT),
        major_faults=own[Usage.MAJOR_FAULTS] * step_ns,
        peers_major_faults=usual(Usage.MAJOR_FAULTS),
        cpu_ns=own[Usage.CPU_TIME] * step_ns if timed else None,
        peers_cpu_ns=usual(Usage.CPU_TIME) if timed else None,
    )
