"""Waits of the host while its GPU worked: they delayed nothing and are in no term."""

from collections import defaultdict

import numpy as np

from traincope.analysis.attribution.terms import PHASE_TERMS
from traincope.analysis.ledger.ledger import Ledger
from traincope.arrays import Ints
from traincope.events import Kind, Phase
from traincope.timeline import LedgerClock, RankTimeline, Timeline
from traincope.timeline.device import HOST_WAITS
from traincope.timeline.intervals.union import Union
from traincope.timeline.timeline import HOST_THREAD

IDLE = (
    Phase.LAUNCH_GAP,
    Phase.KERNEL_WAIT,
    *HOST_WAITS,
    Phase.EVALUATION,
)
"""Phases in which a GPU does no work of the step."""
HIDDEN_BY_MARKS = tuple(phase for phase in HOST_WAITS if phase is not Phase.COMPILE)
"""Marks show no idle time within a phase. A compilation is so long that the GPU runs out of work: it is not hidden."""


def host_hidden_waits(timeline: Timeline, ledger: Ledger) -> dict[str, int] | None:
    """Sum the hidden waits of the launching threads over ranks and counted steps: term -> ns; None on the host's clock.

    A GPU's own work is compute, exposed communication and copies.
    """
    if timeline.ledger_clock is LedgerClock.HOST:
        return None
    counted = {rank.rank: rank.numbers[rank.counted] for rank in ledger.ranks}
    sums: dict[str, int] = defaultdict(int)
    for rank in (rank for rank in timeline.ranks if rank.rank in counted):
        for term, ns in _of_rank(rank, numbers=counted[rank.rank]).items():
            sums[term] += ns
    return {term: sums[term] for term in PHASE_TERMS.values() if sums[term]}


def _of_rank(rank: RankTimeline, *, numbers: Ints) -> dict[str, int]:
    works = (rank.main["kind"] == Kind.STALL) | ((rank.main["kind"] == Kind.PHASE) & ~np.isin(rank.main["phase"], IDLE))
    works &= np.isin(rank.main["step"], numbers)
    busy = Union.of(rank.main["start_ns"][works], rank.main["end_ns"][works])
    waits = rank.closed(rank.threads.get(HOST_THREAD, rank.main[:0]))
    hidden = HOST_WAITS if rank.marks is None else HIDDEN_BY_MARKS
    waits = waits[(waits["kind"] == Kind.PHASE) & np.isin(waits["phase"], hidden)]
    sums: dict[str, int] = {}
    for phase in np.unique(waits["phase"]).tolist():
        chosen = waits[waits["phase"] == phase]
        once = Union.of(chosen["start_ns"], chosen["end_ns"])
        sums[PHASE_TERMS[Phase(phase)]] = int(busy.covered_ns(once.starts_ns, once.ends_ns).sum())
    return sums
