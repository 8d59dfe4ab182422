"""Run-ahead: how long before a GPU reaches a mark its host has queued it. Near zero, the host limits the GPU."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.ledger.ledger import RankLedger
from traincope.arrays import Bools, Ints
from traincope.events import Kind, Phase
from traincope.timeline import Timeline
from traincope.timeline.intervals.union import Union
from traincope.timeline.timeline import Marks

COMPUTING = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAhead:
    """Run-ahead of the hosts in the counted steps of all ranks, by marks on the compute streams of their GPUs."""

    median_ns: int
    """Median over the begins of steps and phases. Near 0, the host limits the GPU."""
    empty_ratio: float
    """Share of step time in computing phases after which the GPU had nothing to do: only the host can have ended them
    later than the GPU, or a wait of the host for the GPU. Stalls for communication are left out.
    """
    fed: bool
    """No GPU ever lacked queued work. Then no time is idle because of late launches, within phases either."""


def run_ahead(measured: Timeline, ledgers: tuple[RankLedger, ...]) -> RunAhead | None:
    """Return the run-ahead of a timeline that marks measured; None without marks or counted steps."""
    counted = {ledger.rank: ledger for ledger in ledgers}
    chosen = [
        (rank.marks, _pairs(rank.marks, counted[rank.rank]), rank.of_kind(Kind.STALL))
        for rank in measured.ranks
        if rank.marks is not None and rank.rank in counted
    ]
    ahead = np.concatenate([marks.ahead_ns[pairs] for marks, pairs, _ in chosen] or [np.empty(0, dtype=np.int64)])
    wall_ns = sum(ledger.total_wall_ns for ledger in ledgers)
    if not len(ahead) or not wall_ns:
        return None
    return RunAhead(
        median_ns=round(float(np.median(ahead))),
        empty_ratio=sum(_before_empty_ns(*each) for each in chosen) / wall_ns,
        fed=all(marks.fed[pairs + 1].all() for marks, pairs, _ in chosen),
    )


def _pairs(marks: Marks, ledger: RankLedger) -> Ints:
    """Positions of the marks in counted steps that another one follows."""
    inside: Bools = np.isin(marks.step, ledger.numbers[ledger.counted])
    return np.flatnonzero(inside[:-1])


def _before_empty_ns(marks: Marks, pairs: Ints, stalls: NDArray[np.void]) -> int:
    """Sum the time from the begins of computing phases to the next marks, if these found nothing to do. Stalls are
    left out.
    """
    before = pairs[np.isin(marks.phase[pairs], COMPUTING) & marks.empty[pairs + 1]]
    begins, ends = marks.at_ns[before], marks.at_ns[before + 1]
    stalled = Union.of(stalls["start_ns"], stalls["end_ns"])
    return int((ends - begins - stalled.covered_ns(begins, ends)).sum())


def unmarked_terms(ahead: RunAhead | None) -> Iterator[str]:
    """Yield the terms that marks do not measure. Without time between phases that is idle, launch gaps within phases
    are excluded only if the GPUs were fed.
    """
    yield from ("exposed_memory", "compile", "sync", "kernel_wait")
    if ahead is None or not ahead.fed:
        yield "launch_gap"
