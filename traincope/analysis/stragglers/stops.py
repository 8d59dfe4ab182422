"""Work that stops some ranks while the others wait: saves, garbage collection, compilation, evaluation, logging.

In a training whose ranks wait for each other, such work costs the time of its slowest rank, not the mean over the
ranks. What the others lose is measured by the lengths of their steps, without detail and without a common clock: a rank
that has already begun the next step has a long next step. So the step of a stop and the one after it are compared
with the other steps. A rank loses at least its own work, and at most that of the slowest rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.attribution.terms import EVALUATION, UNATTRIBUTED
from traincope.analysis.ledger.ledger import Ledger, RankLedger, evaluation_by_step
from traincope.analysis.stragglers.patterns import period
from traincope.arrays import Bools, Floats, Ints
from traincope.timeline import LedgerClock, Timeline

STOP = 0.1
"""Share of the median step from which work is a stop. This and the thresholds below are ours."""
UNCOVERED_STOP = 0.5
"""The same of work that no probe covers: the time that a loaded host takes from a rank is such work too."""
USUAL = 0.3
"""Share of the steps that no stop may lengthen, to know the usual step."""
FOLLOWED = 0.5
"""Share of a stop by which the others' steps are longer, from which they wait for it."""
MIN_STOPS = 3
"""Fewest stops that show that the others wait, or that every step has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stops:
    """Stops for work of one term, in the steps that all ranks completed."""

    steps: tuple[int, ...]
    """Steps in which they begin."""
    period_steps: int | None
    """Steps from one stop to the next; None if they differ."""
    num_steps: int
    """Steps that were looked at."""
    mean_ns: float
    """Mean length of a stop on its slowest rank."""
    longest_ns: float
    longest_step: int
    lost_ratio: float
    """Share of step time that the ranks lose, their waits included. Without a usual step, an upper bound."""
    own_ratio: float
    """The part of `lost_ratio` that is the ranks' own work."""
    own_ns: Mapping[int, int]
    """Rank -> its own work in the stops."""
    followed: bool
    """The lengths of the others' steps show that they wait."""
    is_bound: bool
    """No usual step is known."""

    @property
    def waited_ratio(self) -> float:
        return self.lost_ratio - self.own_ratio


def stops(timeline: Timeline, ledger: Ledger, term: str) -> Stops | None:
    """Find the stops for work of a term, which may be evaluation; None without any, or in too few steps to judge.

    On the GPUs' clock evaluation is not judged: the timeline's steps have the lengths of the hosts.
    """
    if term == EVALUATION and ledger.clock is LedgerClock.DEVICE:
        return None
    ranks = [rank for rank in ledger.ranks if rank.num_counted]
    shown = [rank.numbers[rank.timed if term in (*rank.every_step, EVALUATION) else rank.counted] for rank in ranks]
    numbers = np.array(sorted(set.intersection(*(set(each.tolist()) for each in shown))) if shown else [], dtype=int)
    if not len(numbers):
        return None
    at = [np.searchsorted(rank.numbers, numbers) for rank in ranks]
    work_ns = np.array([_work_ns(timeline, rank, term)[rows] for rank, rows in zip(ranks, at, strict=True)])
    wall_ns = np.array([rank.wall_ns[rows] for rank, rows in zip(ranks, at, strict=True)], dtype=np.float64)
    if term == EVALUATION:
        wall_ns += work_ns
    slowest_ns = work_ns.max(axis=0)
    stopped = slowest_ns >= (UNCOVERED_STOP if term == UNATTRIBUTED else STOP) * float(np.median(wall_ns))
    if not stopped.any():
        return None
    waited_ns = _waited_ns(numbers, work_ns, wall_ns, stopped)
    if waited_ns is None and stopped.sum() < MIN_STOPS:
        return None
    own_ns = work_ns[:, stopped].sum(axis=1)
    possible_ns = slowest_ns[stopped].sum() - own_ns
    steps = numbers[stopped]
    return Stops(
        steps=tuple(steps.tolist()),
        period_steps=period(steps),
        num_steps=len(numbers),
        mean_ns=float(slowest_ns[stopped].mean()),
        longest_ns=float(slowest_ns[stopped].max()),
        longest_step=int(steps[np.argmax(slowest_ns[stopped])]),
        lost_ratio=float((own_ns + (possible_ns if waited_ns is None else waited_ns)).sum() / wall_ns.sum()),
        own_ratio=float(own_ns.sum() / wall_ns.sum()),
        own_ns={rank.rank: int(ns) for rank, ns in zip(ranks, own_ns, strict=True)},
        followed=waited_ns is not None
        and len(steps) >= MIN_STOPS
        and bool(waited_ns.sum() >= FOLLOWED * possible_ns.sum() > 0),
        is_bound=waited_ns is None,
    )


def _work_ns(timeline: Timeline, rank: RankLedger, term: str) -> Floats:
    """Return the rank's work of this term in each of its steps."""
    if term == EVALUATION:
        return evaluation_by_step(timeline, rank).astype(np.float64)
    ns = rank.terms.get(term)
    if ns is None:
        return np.zeros(len(rank.numbers))
    usual = float(np.median(ns)) if term == UNATTRIBUTED else 0.0  # every step has some
    longer: Floats = np.maximum(ns - usual, 0.0)
    return longer


def _waited_ns(numbers: Ints, work_ns: Floats, wall_ns: Floats, stopped: Bools) -> Floats | None:
    """Sum each rank's wait for the stops of slower ranks; None if too few steps are without a stop.

    The last step has none after it that could be longer: there, a rank waits in proportion.
    """
    after = np.append(False, stopped[:-1] & (np.diff(numbers) == 1))
    usual = ~(stopped | after)
    if usual.mean() < USUAL:
        return None
    seen = stopped & np.append(np.diff(numbers) == 1, False)
    chosen = seen | np.append(False, seen[:-1])
    excess_ns = wall_ns[:, chosen].sum(axis=1) - chosen.sum() * wall_ns[:, usual].mean(axis=1)
    slowest_ns, own_ns = work_ns.max(axis=0), work_ns[:, seen].sum(axis=1)
    possible_ns = slowest_ns[seen].sum() - own_ns
    ratio = np.clip((excess_ns - own_ns) / np.maximum(possible_ns, 1.0), 0.0, 1.0)
    waited_ns: Floats = ratio * (slowest_ns[stopped].sum() - work_ns[:, stopped].sum(axis=1))
    return waited_ns
