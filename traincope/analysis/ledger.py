"""The ledger: on every rank and complete step, integer ns terms that sum exactly to its wall time."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traincope.analysis.bubble import Idle
from traincope.analysis.host import Bools, Ints, Pieces
from traincope.analysis.pipeline import ReplicaStep, window_ends
from traincope.analysis.stalls import StallSplit
from traincope.analysis.terms import (
    BUBBLE,
    UNATTRIBUTED,
    UNSEEN_BY_HOST,
    exposed_transfer,
    exposed_wait,
    term_order,
)
from traincope.events import Kind
from traincope.timeline import RankTimeline
from traincope.topology import PIPELINE_AXIS


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLedger:
    """One rank; arrays have one entry a complete step."""

    rank: int
    numbers: Ints
    """Step numbers."""
    wall_ns: Ints
    terms: dict[str, Ints | None]
    """Term -> ns, in ledger order; None: this source cannot see it. The rest sums to wall_ns."""
    unsplit_ns: Ints
    """Part of exposed_transfer that may be waiting: records of the peers are missing."""
    counted: Bools
    """Steps that enter the sums; the first of a run is warm-up."""

    def total(self, term: str) -> int | None:
        """Ns of a term over the counted steps."""
        values = self.terms.get(term)
        return None if values is None else int(values[self.counted].sum())

    @property
    def total_wall_ns(self) -> int:
        return int(self.wall_ns[self.counted].sum())

    @property
    def num_counted(self) -> int:
        return int(self.counted.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All ranks that completed a step."""

    ranks: tuple[RankLedger, ...]
    order: tuple[str, ...]
    """All terms, as tables show them."""
    excluded_steps: tuple[int, ...]
    """Left out of every sum: the first step of a run warms up."""

    @property
    def wall_ns(self) -> int:
        return sum(rank.total_wall_ns for rank in self.ranks)

    @property
    def rank_steps(self) -> int:
        """Counted steps, over all ranks."""
        return sum(rank.num_counted for rank in self.ranks)

    def total(self, term: str) -> int | None:
        """Ns of a term over ranks and counted steps; None where no rank can see it."""
        values = [value for rank in self.ranks if (value := rank.total(term)) is not None]
        return sum(values) if values else None

    def share(self, term: str) -> float | None:
        """Share of wall time."""
        total = self.total(term)
        return None if total is None or not self.wall_ns else total / self.wall_ns


def rank_ledger(
    rank: RankTimeline,
    pieces: Pieces,
    split: StallSplit,
    *,
    steps: tuple[ReplicaStep, ...],
    idle: Mapping[int, Idle],
    excluded: frozenset[int],
) -> RankLedger:
    """Sum one rank's pieces by step and term.

    `steps` are the replica steps of this rank's pipeline and `idle` (step number -> replays) what
    they say; both empty without a pipeline.
    """
    count = len(rank.steps)
    numbers = np.array([step.number for step in rank.steps], dtype=np.int64)
    pool = idle_pool(rank, pieces, split, steps=steps)
    terms = _plain_terms(pieces, split, pool=pool, count=count)
    if pool.any() or idle:
        terms |= _bubble_terms(numbers, _by_step(pieces, pieces.duration_ns, pool, count), idle)
    unsplit = _by_step(pieces, split.transfer_ns, ~split.split & ~pool, count)
    return RankLedger(
        rank=rank.rank,
        numbers=numbers,
        wall_ns=np.array([step.wall_ns for step in rank.steps], dtype=np.int64),
        terms=dict(terms),
        unsplit_ns=unsplit,
        counted=~np.isin(numbers, list(excluded)),
    )


def idle_pool(rank: RankTimeline, pieces: Pieces, split: StallSplit, *, steps: tuple[ReplicaStep, ...]) -> Bools:
    """Pieces that are pipeline idle: stalls and nothing at all, outside own actions, inside the window.

    A wait for the pipeline's own sends and receives is pipeline idle wherever it lies.
    """
    if not (pieces.intervals["kind"] == Kind.ACTION).any():
        return np.zeros(len(pieces.step), dtype=bool)
    ends = window_ends(rank, steps)
    window = np.array([ends.get(step.number, np.iinfo(np.int64).min) for step in rank.steps] + [0], dtype=np.int64)
    in_step = pieces.step >= 0
    in_window = in_step & (pieces.end_ns <= window[pieces.step])
    idle = (pieces.stalled | (pieces.term == UNATTRIBUTED)) & ~pieces.in_action
    on_pipeline = pieces.stalled & (split.axis == PIPELINE_AXIS)
    result: Bools = (idle & in_window) | (on_pipeline & in_step)
    return result


def assemble(ranks: tuple[RankLedger, ...], *, excluded: frozenset[int]) -> Ledger:
    """All ranks in one ledger, every rank with every term of the run, zero where it had none."""
    found = {term for rank in ranks for term in rank.terms}
    axes = {term.partition("[")[2].rstrip("]") for term in found if "[" in term}
    order = term_order(axes, pipeline=bool(found & set(BUBBLE)))
    never_waits = exposed_wait(PIPELINE_AXIS)
    order = tuple(term for term in order if term != never_waits or term in found)
    filled = tuple(
        RankLedger(
            rank=rank.rank,
            numbers=rank.numbers,
            wall_ns=rank.wall_ns,
            terms={term: _filled(rank, term) for term in order},
            unsplit_ns=rank.unsplit_ns,
            counted=rank.counted,
        )
        for rank in ranks
    )
    return Ledger(ranks=filled, order=order, excluded_steps=tuple(sorted(excluded)))


def _filled(rank: RankLedger, term: str) -> Ints | None:
    if term in UNSEEN_BY_HOST:
        return None
    values = rank.terms.get(term)
    return np.zeros_like(rank.wall_ns) if values is None else values


def _plain_terms(pieces: Pieces, split: StallSplit, *, pool: Bools, count: int) -> dict[str, Ints]:
    """Every term but those of the pipeline, from the pieces outside the pool."""
    outside = ~pool
    term, stalled = pieces.term, pieces.stalled
    terms = {
        name: _by_step(pieces, pieces.duration_ns, outside & ~stalled & (term == name), count)
        for name in set(term[~stalled])
    }
    for axis in set(split.axis[stalled & outside]):
        chosen = outside & stalled & (split.axis == axis)
        terms[exposed_transfer(axis)] = _by_step(pieces, split.transfer_ns, chosen, count)
        terms[exposed_wait(axis)] = _by_step(pieces, split.wait_ns, chosen, count)
    return terms


def _bubble_terms(numbers: Ints, pool_ns: Ints, idle: Mapping[int, Idle]) -> dict[str, Ints]:
    """The pool by the replays; what they do not explain is jitter."""
    nothing = Idle(schedule_ns=0, imbalance_ns=0, transfer_ns=0)
    replays = [idle.get(int(number), nothing) for number in numbers]
    schedule = np.array([replay.schedule_ns for replay in replays], dtype=np.int64)
    imbalance = np.array([replay.imbalance_ns for replay in replays], dtype=np.int64)
    transfer = np.array([replay.transfer_ns for replay in replays], dtype=np.int64)
    return {
        "bubble.schedule": schedule,
        "bubble.imbalance": imbalance,
        exposed_transfer(PIPELINE_AXIS): transfer,
        "bubble.jitter": pool_ns - schedule - imbalance - transfer,
    }


def _by_step(pieces: Pieces, ns: Ints, chosen: Bools, count: int) -> Ints:
    """Exact integer sums of `ns` over the chosen pieces, a step each."""
    sums = np.zeros(count, dtype=np.int64)
    inside = chosen & (pieces.step >= 0)
    np.add.at(sums, pieces.step[inside], ns[inside])
    return sums
