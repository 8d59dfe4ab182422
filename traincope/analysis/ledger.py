"""The ledger: on every rank and complete step, integer ns terms that sum exactly to its wall time."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from traincope.analysis.bubble import Idle
from traincope.analysis.coverage import LeftOut
from traincope.analysis.host import Bools, Ints, Numbers, Pieces
from traincope.analysis.pipeline import NO_WINDOW, by_number
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
from traincope.analysis.unsplit import Unsplit, code
from traincope.timeline import RankTimeline
from traincope.topology import PIPELINE_AXIS, axis_order


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
    unsplit: Mapping[tuple[str, Unsplit], Ints]
    """(Axis, why) -> part of its exposed_transfer that may be waiting."""
    counted: Bools
    """Steps that enter the sums; the first of a run is warm-up."""
    evaluation_ns: int = 0
    """In steps, between them and after them."""
    recorded_ns: int = 0
    """From the rank's first record to its last instant."""

    @property
    def unsplit_ns(self) -> Ints:
        """For whatever reason, on all axes."""
        return sum(self.unsplit.values(), np.zeros_like(self.wall_ns))

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


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """All ranks that completed a step."""

    ranks: tuple[RankLedger, ...]
    order: tuple[str, ...]
    """All terms, as tables show them."""
    excluded_steps: tuple[int, ...]
    """Left out of every sum: the first step of a run warms up."""
    dropped_steps: tuple[int, ...] = ()
    """Left out of every sum, for some rank dropped its records."""
    unwatched_steps: tuple[int, ...] = ()
    """Left out of every sum, for some rank recorded no communication in them."""

    @cached_property
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

    def unsplit(self) -> dict[tuple[str, Unsplit], int]:
        """(Axis, why) -> ns over ranks and counted steps that are transfer and may be waiting."""
        sums: dict[tuple[str, Unsplit], int] = defaultdict(int)
        for rank in self.ranks:
            for key, ns in rank.unsplit.items():
                sums[key] += int(ns[rank.counted].sum())
        return {key: sums[key] for key in sorted(sums, key=lambda key: (axis_order(key[0]), key[1])) if sums[key]}

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
    pipelined: bool,
    excluded: frozenset[int],
) -> RankLedger:
    """Sum one rank's pieces by step and term.

    `window_ends` (ns, one a step, NO_WINDOW where there is none) and `idle`, what the replays say, are of
    the steps in which this rank's pipeline could be replayed. `pipelined`: the run recorded pipeline
    actions; then what a step without a replay stood still for its pipeline cannot be told apart.
    """
    numbers = np.array([step.number for step in rank.steps], dtype=np.int64)
    pool = idle_pool(pieces, split, window_ends=window_ends)
    if pipelined:
        split = split.untold(split.on(PIPELINE_AXIS) & ~pool[split.at], Unsplit.NOT_REPLAYED)
    terms = _host_terms(pieces, pool=pool, count=len(numbers))
    evaluation_ns = terms.pop(EVALUATION)
    terms |= _exposed_terms(pieces, split, pool=pool, count=len(numbers))
    if pipelined:
        terms.pop(exposed_wait(PIPELINE_AXIS), None)
    if idle:
        bubble, sent_ns = _bubble_terms(numbers, _by_step(pieces, np.flatnonzero(pool), len(numbers)), idle)
        sending = exposed_transfer(PIPELINE_AXIS)
        terms |= bubble | {sending: sent_ns + terms.get(sending, 0)}
    return RankLedger(
        rank=rank.rank,
        numbers=numbers,
        wall_ns=np.array([step.length_ns for step in rank.steps], dtype=np.int64) - evaluation_ns,
        terms=dict(terms),
        unsplit=_unsplit(pieces, split, outside=~pool[split.at], count=len(numbers)),
        counted=~np.isin(numbers, list(excluded)),
        evaluation_ns=int(pieces.duration_ns[pieces.code == HOST_TERMS.index(EVALUATION)].sum()),
        recorded_ns=rank.last_ns - int(rank.main["start_ns"].min(initial=rank.last_ns)),
    )


def idle_pool(pieces: Pieces, split: StallSplit, *, window_ends: Ints) -> Bools:
    """Pieces that are pipeline idle: stalls and nothing at all, outside own actions, inside the step's window.

    A wait for the pipeline's own sends and receives is pipeline idle wherever it lies in such a step.
    """
    ends = np.append(window_ends, NO_WINDOW)[pieces.step]
    in_step, in_window = ends != NO_WINDOW, pieces.end_ns <= ends
    nothing = pieces.code == HOST_TERMS.index(UNATTRIBUTED)
    pool: Bools = (pieces.stalled | nothing) & ~pieces.in_action & in_window
    on_pipeline = split.at[split.on(PIPELINE_AXIS)]
    pool[on_pipeline] |= in_step[on_pipeline]
    return pool


def assemble(ranks: tuple[RankLedger, ...], *, left_out: LeftOut) -> Ledger:
    """All ranks in one ledger, every rank with every term of the run, zero where it had none."""
    found = {term for rank in ranks for term in rank.terms}
    axes = {term.partition("[")[2].rstrip("]") for term in found if "[" in term}
    order = term_order(axes, pipeline=bool(found & set(BUBBLE)))
    never_waits = exposed_wait(PIPELINE_AXIS)
    order = tuple(term for term in order if term != never_waits or term in found)
    return Ledger(
        ranks=tuple(replace(rank, terms={term: _filled(rank, term) for term in order}) for rank in ranks),
        order=order,
        excluded_steps=tuple(sorted(left_out.warm_up)),
        dropped_steps=tuple(sorted(left_out.dropped)),
        unwatched_steps=tuple(sorted(left_out.unwatched)),
    )


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


def _unsplit(pieces: Pieces, split: StallSplit, *, outside: Bools, count: int) -> dict[tuple[str, Unsplit], Ints]:
    """Of the transfer outside the pool, what may be waiting."""
    sums = {}
    for axis in split.axes:
        for cause in Unsplit:
            chosen = outside & split.on(axis) & (split.cause == code(cause))
            if chosen.any():
                sums[axis, cause] = _summed(pieces.step[split.at[chosen]], split.transfer_ns[chosen], count)
    return sums


def _bubble_terms(numbers: Ints, pool_ns: Ints, idle: Sequence[Idle]) -> tuple[dict[str, Ints], Ints]:
    """The pool by the replays: the bubble, of which is jitter what they do not explain; and exposed transfer."""
    known = np.concatenate([replays.numbers for replays in idle] or [numbers[:0]])

    def explained(values: Sequence[Ints]) -> Ints:
        return by_number(numbers, known, np.concatenate([*values, numbers[:0]]), missing=0)

    schedule = explained([replays.schedule_ns for replays in idle])
    imbalance = explained([replays.imbalance_ns for replays in idle])
    transfer = explained([replays.transfer_ns for replays in idle])
    jitter = pool_ns - schedule - imbalance - transfer
    return {"bubble.schedule": schedule, "bubble.imbalance": imbalance, "bubble.jitter": jitter}, transfer


def _by_step(pieces: Pieces, at: Ints, count: int) -> Ints:
    """Time of these pieces, a step each; they lie in steps."""
    return _summed(pieces.step[at], pieces.duration_ns[at], count)


def _summed(places: Numbers, ns: Ints, count: int) -> Ints:
    """Exact integer sums of `ns` by place; what has none (-1) is left out."""
    sums = np.zeros(count + 1, dtype=np.int64)
    np.add.at(sums, places, ns)
    return sums[:count]
