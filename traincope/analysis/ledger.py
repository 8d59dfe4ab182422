"""The ledger: on every rank and complete step, integer ns terms that sum exactly to its wall time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincope.analysis.bubble import Idle
from traincope.analysis.host import Bools, Ints, Numbers, Pieces
from traincope.analysis.pipeline import by_number
from traincope.analysis.stalls import StallSplit
from traincope.analysis.terms import (
    BUBBLE,
    EVALUATION,
    HOST_TERMS,
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
    """From start to end without evaluation, which is no part of a step."""
    terms: dict[str, Ints | None]
    """Term -> ns, in ledger order; None: this source cannot see it. The rest sums to wall_ns."""
    unsplit_ns: Ints
    """Part of exposed_transfer that may be waiting: the peers' records are missing, or their clocks too far apart."""
    counted: Bools
    """Steps that enter the sums; the first of a run is warm-up."""
    evaluation_ns: int = 0
    """In steps, between them and after them."""
    recorded_ns: int = 0
    """From the rank's first record to its last instant."""

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

    @property
    def evaluation_ns(self) -> int:
        """Of all ranks, in the whole run."""
        return sum(rank.evaluation_ns for rank in self.ranks)

    @property
    def evaluation_ratio(self) -> float:
        """Share of the time that the ranks recorded."""
        recorded = sum(rank.recorded_ns for rank in self.ranks)
        return self.evaluation_ns / recorded if recorded else 0.0

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
    window_ends: Ints,
    idle: Sequence[Idle],
    excluded: frozenset[int],
) -> RankLedger:
    """Sum one rank's pieces by step and term.

    `window_ends` (ns, one a step) and `idle`, what the replays say, are those of this rank's
    pipeline; without one, the ends are before every time and `idle` is empty.
    """
    numbers = np.array([step.number for step in rank.steps], dtype=np.int64)
    pool = idle_pool(pieces, split, window_ends=window_ends)
    terms = _host_terms(pieces, pool=pool, count=len(numbers))
    evaluation_ns = terms.pop(EVALUATION)
    terms |= _exposed_terms(pieces, split, pool=pool, count=len(numbers))
    if pool.any() or idle:
        terms |= _bubble_terms(numbers, _by_step(pieces, np.flatnonzero(pool), len(numbers)), idle)
    may_wait = ~split.split & ~pool[split.at]
    return RankLedger(
        rank=rank.rank,
        numbers=numbers,
        wall_ns=np.array([step.length_ns for step in rank.steps], dtype=np.int64) - evaluation_ns,
        terms=dict(terms),
        unsplit_ns=_summed(pieces.step[split.at[may_wait]], split.transfer_ns[may_wait], len(numbers)),
        counted=~np.isin(numbers, list(excluded)),
        evaluation_ns=int(pieces.duration_ns[pieces.code == HOST_TERMS.index(EVALUATION)].sum()),
        recorded_ns=rank.last_ns - int(rank.main["start_ns"].min(initial=rank.last_ns)),
    )


def idle_pool(pieces: Pieces, split: StallSplit, *, window_ends: Ints) -> Bools:
    """Pieces that are pipeline idle: stalls and nothing at all, outside own actions, inside the window.

    A wait for the pipeline's own sends and receives is pipeline idle wherever it lies.
    """
    if not (pieces.intervals["kind"] == Kind.ACTION).any():
        return np.zeros(len(pieces.step), dtype=bool)
    in_step = pieces.step >= 0
    in_window = in_step & (pieces.end_ns <= np.append(window_ends, 0)[pieces.step])
    nothing = pieces.code == HOST_TERMS.index(UNATTRIBUTED)
    pool: Bools = (pieces.stalled | nothing) & ~pieces.in_action & in_window
    on_pipeline = split.at[split.on(PIPELINE_AXIS)]
    pool[on_pipeline] |= in_step[on_pipeline]
    return pool


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
            evaluation_ns=rank.evaluation_ns,
            recorded_ns=rank.recorded_ns,
        )
        for rank in ranks
    )
    return Ledger(ranks=filled, order=order, excluded_steps=tuple(sorted(excluded)))


def _filled(rank: RankLedger, term: str) -> Ints | None:
    if term in UNSEEN_BY_HOST:
        return None
    values = rank.terms.get(term)
    return np.zeros_like(rank.wall_ns) if values is None else values


def _host_terms(pieces: Pieces, *, pool: Bools, count: int) -> dict[str, Ints]:
    """What the training thread did itself, outside the pool; evaluation too."""
    chosen = np.flatnonzero((pieces.code >= 0) & ~pool & (pieces.step >= 0))
    places = pieces.code[chosen].astype(np.int64) * count + pieces.step[chosen]
    sums = _summed(places, pieces.duration_ns[chosen], len(HOST_TERMS) * count)
    return dict(zip(HOST_TERMS, sums.reshape(len(HOST_TERMS), count), strict=True))


def _exposed_terms(pieces: Pieces, split: StallSplit, *, pool: Bools, count: int) -> dict[str, Ints]:
    """What it stood still for outside the pool, axis by axis."""
    outside = ~pool[split.at]
    terms = {}
    for axis in split.axes:
        chosen = outside & split.on(axis)
        if chosen.any():
            step = pieces.step[split.at[chosen]]
            terms[exposed_transfer(axis)] = _summed(step, split.transfer_ns[chosen], count)
            terms[exposed_wait(axis)] = _summed(step, split.wait_ns[chosen], count)
    return terms


def _bubble_terms(numbers: Ints, pool_ns: Ints, idle: Sequence[Idle]) -> dict[str, Ints]:
    """The pool by the replays; what they do not explain is jitter."""
    known = np.concatenate([replays.numbers for replays in idle] or [numbers[:0]])

    def explained(values: Sequence[Ints]) -> Ints:
        return by_number(numbers, known, np.concatenate([*values, numbers[:0]]), missing=0)

    schedule = explained([replays.schedule_ns for replays in idle])
    imbalance = explained([replays.imbalance_ns for replays in idle])
    transfer = explained([replays.transfer_ns for replays in idle])
    return {
        "bubble.schedule": schedule,
        "bubble.imbalance": imbalance,
        exposed_transfer(PIPELINE_AXIS): transfer,
        "bubble.jitter": pool_ns - schedule - imbalance - transfer,
    }


def _by_step(pieces: Pieces, at: Ints, count: int) -> Ints:
    """Time of these pieces, a step each; they lie in steps."""
    return _summed(pieces.step[at], pieces.duration_ns[at], count)


def _summed(places: Numbers, ns: Ints, count: int) -> Ints:
    """Exact integer sums of `ns` by place; what has none (-1) is left out."""
    sums = np.zeros(count + 1, dtype=np.int64)
    np.add.at(sums, places, ns)
    return sums[:count]
