"""Ledger: integer terms in ns of every complete step on every rank, which sum exactly to the step's wall time."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from traincope.analysis.attribution.stalls import AmbiguousWait, StallSplit, code
from traincope.analysis.attribution.terms import (
    BUBBLE,
    EVALUATION,
    EVERY_STEP,
    HOST_TERMS,
    NAMED_PREFIX,
    NOT_MEASURED,
    ONLY_IF_RECORDED,
    UNATTRIBUTED,
    exposed_transfer,
    exposed_wait,
    term_order,
)
from traincope.analysis.attribution.thread_slices import ThreadSlices
from traincope.analysis.ledger.coverage import ExcludedSteps
from traincope.analysis.pipeline.bubble import Idle
from traincope.analysis.pipeline.replicas import NO_WINDOW, by_number
from traincope.arrays import Bools, Ints, Numbers
from traincope.timeline import LedgerClock, RankTimeline, Timeline
from traincope.topology import PIPELINE_AXIS, axis_order

MAX_LEFT_OUT = 1 / 16
"""Largest share of light steps in a run whose counted steps are as good as all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLedger:
    """Ledger of one rank. Arrays have one entry per complete step."""

    rank: int
    numbers: Ints
    """Step numbers."""
    wall_ns: Ints
    """From start to end, without evaluation, which is not part of a step."""
    terms: dict[str, Ints | None]
    """Term -> ns, in ledger order; None if nothing measures the term. The others sum to `wall_ns`."""
    ambiguous_waits: Mapping[tuple[str, AmbiguousWait], Ints]
    """(Axis, cause) -> part of its `exposed_transfer` that may contain wait."""
    counted: Bools
    """True for steps that enter the sums. The first step of a run is the warm-up."""
    light: Bools
    """True for steps whose length is known but not what it consists of, and for those that are no sample."""
    detailed: Bools
    """True for steps that all ranks recorded in detail, also if they are no sample."""
    parts: Mapping[tuple[str, str], Ints] = field(default_factory=dict)
    """(Term of a part that is not training, term inside) -> ns: compute, waits and transfers, which it contains."""
    every_step: tuple[str, ...] = EVERY_STEP
    """Terms that light steps have too."""
    evaluation_ns: int = 0
    """Evaluation in steps, between them and after them."""
    trained_ns: int = 0
    """From the rank's first step or evaluation to its last instant: a start-up has none."""

    @property
    def ambiguous_waits_ns(self) -> Ints:
        """Ambiguous waits of all causes, on all axes."""
        return sum(self.ambiguous_waits.values(), np.zeros_like(self.wall_ns))

    def total(self, term: str) -> int | None:
        """Sum a term over the counted steps, in ns."""
        values = self.terms.get(term)
        return None if values is None else int(values[self.counted].sum())

    def own(self, term: str) -> Ints | None:
        """Return the term's ns without the communication inside it, which another rank may cause; None if unknown."""
        values = self.terms.get(term)
        return None if values is None else values - self._inside(("exposed_",), of=term)

    @property
    def waits_inside_ns(self) -> Ints:
        """Waits for other ranks in parts that are not training."""
        return self._inside(("exposed_wait[",))

    def _inside(self, prefixes: tuple[str, ...], *, of: str | None = None) -> Ints:
        chosen = (ns for (part, term), ns in self.parts.items() if of in (None, part) and term.startswith(prefixes))
        return sum(chosen, np.zeros_like(self.wall_ns))

    @property
    def total_wall_ns(self) -> int:
        return int(self.wall_ns[self.counted].sum())

    @property
    def timed(self) -> Bools:
        """True for all steps whose length is that of a usual step: counted and light ones."""
        return self.counted | self.light

    def known(self, term: str) -> tuple[int, int]:
        """Return a term's ns and the wall time of its steps: all if every step records it, otherwise counted ones."""
        values, steps = self.terms.get(term), self.timed if term in self.every_step else self.counted
        return 0 if values is None else int(values[steps].sum()), int(self.wall_ns[steps].sum())

    @property
    def num_counted(self) -> int:
        return int(self.counted.sum())


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Ledgers of all ranks that completed a step."""

    ranks: tuple[RankLedger, ...]
    order: tuple[str, ...]
    """All terms, in the order of the tables."""
    excluded_steps: tuple[int, ...]
    """The warm-up step, which enters no sum."""
    dropped_steps: tuple[int, ...] = ()
    """Steps that enter no sum because some rank dropped their records."""
    unwatched_steps: tuple[int, ...] = ()
    """Steps that enter no sum because some rank recorded no communication in them."""
    clock: LedgerClock = LedgerClock.HOST

    @cached_property
    def wall_ns(self) -> int:
        return sum(rank.total_wall_ns for rank in self.ranks)

    @cached_property
    def every_step(self) -> tuple[str, ...]:
        """Terms that light steps have too, on every rank."""
        named = (term for term in self.order if term.startswith(NAMED_PREFIX))
        return tuple(term for term in (*EVERY_STEP, *named) if all(term in rank.every_step for rank in self.ranks))

    @property
    def rank_steps(self) -> int:
        """Number of counted steps, summed over ranks."""
        return sum(rank.num_counted for rank in self.ranks)

    @property
    def timed_steps(self) -> int:
        """Number of steps of the rank with most, with those without detail."""
        return max((int(rank.timed.sum()) for rank in self.ranks), default=0)

    @property
    def evaluation_ns(self) -> int:
        """Evaluation of all ranks in the whole run."""
        return sum(rank.evaluation_ns for rank in self.ranks)

    @property
    def evaluation_ratio(self) -> float:
        """Evaluation's share of the ranks' time after their start-up."""
        trained = sum(rank.trained_ns for rank in self.ranks)
        return self.evaluation_ns / trained if trained else 0.0

    def total(self, term: str) -> int | None:
        """Sum a term over ranks and counted steps, in ns; None if no rank measures it."""
        return self._totals.get(term)

    @cached_property
    def _totals(self) -> Mapping[str, int]:
        totals: dict[str, int] = {}
        for rank in self.ranks:
            for term in rank.terms:
                value = rank.total(term)
                if value is not None:
                    totals[term] = totals.get(term, 0) + value
        return totals

    def ambiguous_waits(self) -> dict[tuple[str, AmbiguousWait], int]:
        """Sum the ambiguous waits over ranks and counted steps: (axis, cause) -> ns."""
        sums: dict[tuple[str, AmbiguousWait], int] = defaultdict(int)
        for rank in self.ranks:
            for key, ns in rank.ambiguous_waits.items():
                sums[key] += int(ns[rank.counted].sum())
        return {key: sums[key] for key in sorted(sums, key=lambda key: (axis_order(key[0]), key[1])) if sums[key]}

    @cached_property
    def timed_wall_ns(self) -> int:
        """Wall time of the counted steps and of those without detail, summed over ranks."""
        return sum(int(rank.wall_ns[rank.timed].sum()) for rank in self.ranks)

    @property
    def mean_step_ns(self) -> float | None:
        """Mean wall time of these steps; None without any."""
        number = sum(int(rank.timed.sum()) for rank in self.ranks)
        return self.timed_wall_ns / number if number else None

    @property
    def scale(self) -> float:
        """Return how many times the wall time of the counted steps all of these steps took."""
        return self.timed_wall_ns / self.wall_ns if self.wall_ns else 1.0

    @property
    def is_thinned(self) -> bool:
        """Return whether more than a few steps are light: then the counted ones stand for them."""
        light = sum(int(rank.light.sum()) for rank in self.ranks)
        return light > MAX_LEFT_OUT * sum(int(rank.timed.sum()) for rank in self.ranks)

    def parts(self) -> dict[tuple[str, str], int]:
        """Sum what parts that are not training contain, over ranks and counted steps: (term, term inside) -> ns."""
        sums: dict[tuple[str, str], int] = defaultdict(int)
        for rank in self.ranks:
            for key, ns in rank.parts.items():
                sums[key] += int(ns[rank.counted].sum())
        return {key: ns for key, ns in sums.items() if ns}

    def share(self, term: str) -> float | None:
        """Return the term's share of the wall time of the counted steps."""
        total = self.total(term)
        return None if total is None or not self.wall_ns else total / self.wall_ns

    def share_on(self, ranks: Collection[RankLedger], term: str) -> float:
        """Return the term's share of step time on some of the ranks: of all steps, if every step records it."""
        known = [rank.known(term) for rank in ranks]
        ns, wall_ns = sum(ns for ns, _ in known), sum(wall_ns for _, wall_ns in known)
        return ns / wall_ns if wall_ns else 0.0


def evaluation_by_step(timeline: Timeline, ledger: RankLedger) -> Ints:
    """Return the time of the evaluation in each of the rank's steps, which is not part of their wall time."""
    steps = next(rank.steps for rank in timeline.ranks if rank.rank == ledger.rank)
    lengths_ns: Ints = np.array([step.length_ns for step in steps], dtype=np.int64)
    return lengths_ns - ledger.wall_ns


def mean_step_ns(ranks: Sequence[RankLedger]) -> float:
    """Mean wall time of a counted step on these ranks, which have such steps. The mean terms sum to it."""
    return sum(rank.total_wall_ns for rank in ranks) / sum(rank.num_counted for rank in ranks)


def rank_ledger(
    rank: RankTimeline,
    slices: ThreadSlices,
    split: StallSplit,
    *,
    window_ends: Ints,
    idle: Sequence[Idle],
    pipelined: bool,
    excluded: ExcludedSteps,
) -> RankLedger:
    """Sum one rank's slices by step and term.

    `window_ends` (ns, one per step, NO_WINDOW if a step has none) and `idle`, the results of the replays, cover the
    steps in which this rank's pipeline could be replayed. `pipelined` is true if the run recorded pipeline actions:
    then a step without a replay cannot split its stalls on the pipeline's axis.
    """
    numbers = np.array([step.number for step in rank.steps], dtype=np.int64)
    pool = idle_pool(slices, split, window_ends=window_ends)
    if pipelined:
        cause = AmbiguousWait.DEVICE_MARKS if rank.on_device else AmbiguousWait.NOT_REPLAYED
        split = split.as_ambiguous(split.on(PIPELINE_AXIS) & ~pool[split.at], cause)
    terms = _host_terms(slices, pool=pool, count=len(numbers))
    evaluation_ns = terms.pop(EVALUATION)
    terms |= _exposed_terms(slices, split, pool=pool | (slices.part >= 0), count=len(numbers))
    if pipelined:
        terms.pop(exposed_wait(PIPELINE_AXIS), None)
    bubble: dict[str, Ints] = {}
    if idle:
        bubble = _bubble_terms(numbers, _by_step(slices, np.flatnonzero(pool), len(numbers)), idle)
        sending = exposed_transfer(PIPELINE_AXIS)
        terms |= bubble | {sending: bubble[sending] + terms.get(sending, 0)}
    evaluates = slices.code == HOST_TERMS.index(EVALUATION)
    evaluations_ns = slices.start_ns[evaluates][:1].tolist()
    return RankLedger(
        rank=rank.rank,
        numbers=numbers,
        wall_ns=np.array([step.length_ns for step in rank.steps], dtype=np.int64) - evaluation_ns,
        terms=dict(terms),
        parts=_inside_parts(slices, split, count=len(numbers)),
        ambiguous_waits=_ambiguous_waits(
            slices, split, outside=~pool[split.at] & (slices.part[split.at] < 0), count=len(numbers)
        ),
        counted=~np.isin(numbers, list(excluded.numbers)),
        light=np.isin(numbers, list(excluded.light)),
        detailed=~np.isin(numbers, list(excluded.unwatched | excluded.dropped)),
        every_step=() if rank.on_device else EVERY_STEP,
        evaluation_ns=int(slices.duration_ns[evaluates].sum()),
        trained_ns=rank.last_ns - min([*(step.start_ns for step in rank.steps[:1]), *evaluations_ns, rank.last_ns]),
    )


def idle_pool(slices: ThreadSlices, split: StallSplit, *, window_ends: Ints) -> Bools:
    """Mark the slices of pipeline idle time: stalls and unattributed time, outside actions, inside the step's window.

    A stall for the pipeline's own sends and receives is pipeline idle time anywhere in such a step.
    """
    ends = np.append(window_ends, NO_WINDOW)[slices.step]
    in_step, in_window = ends != NO_WINDOW, slices.end_ns <= ends
    nothing = slices.code == HOST_TERMS.index(UNATTRIBUTED)
    pool: Bools = (slices.stalled | nothing) & ~slices.in_action & in_window
    on_pipeline = split.at[split.on(PIPELINE_AXIS)]
    pool[on_pipeline] |= in_step[on_pipeline]
    pool &= slices.part < 0
    return pool


def assemble(
    ranks: tuple[RankLedger, ...],
    *,
    excluded_steps: ExcludedSteps,
    clock: LedgerClock,
    not_measured: Collection[str] | None = None,
) -> Ledger:
    """Join all ranks in one ledger. Every rank gets every term of the run, 0 if it recorded none of it.

    A term without a probe is None on all ranks, unless the records of some rank contain such time. `not_measured`:
    these terms, if they are not those of the clock; they are None unless counted steps contain such time.
    """
    recorded_terms = {term for rank in ranks for term in rank.terms}
    names = {term for term in recorded_terms if term.startswith(NAMED_PREFIX)}
    axes = {term.partition("[")[2].rstrip("]") for term in recorded_terms - names if "[" in term}
    order = term_order(axes, pipeline=bool(recorded_terms & set(BUBBLE)), names=names)
    absent = {exposed_wait(PIPELINE_AXIS)} - recorded_terms
    zero = {term for term in order if not any(np.any(rank.terms.get(term, 0)) for rank in ranks)}
    order = tuple(term for term in order if term not in absent | (ONLY_IF_RECORDED & zero))
    if not_measured is None:
        unseen = zero.intersection(NOT_MEASURED[clock])
    else:
        unseen = {term for term in not_measured if not any(rank.total(term) for rank in ranks)}
    return Ledger(
        ranks=tuple(_completed(rank, order, names=names, unseen=unseen) for rank in ranks),
        order=order,
        excluded_steps=tuple(sorted(excluded_steps.warm_up)),
        dropped_steps=tuple(sorted(excluded_steps.dropped)),
        unwatched_steps=tuple(sorted(excluded_steps.unwatched)),
        clock=clock,
    )


def _completed(rank: RankLedger, order: Sequence[str], *, names: set[str], unseen: Collection[str]) -> RankLedger:
    """Give a rank every term of the run. Light steps have the parts that the training names, too."""
    every_step = (*rank.every_step, *sorted(names)) if rank.every_step else ()
    return replace(rank, terms={term: _values(rank, term, unseen) for term in order}, every_step=every_step)


def _values(rank: RankLedger, term: str, unseen: Collection[str]) -> Ints | None:
    """Return the term's ns; None if nothing measures it. Steps that are not counted may have some, without an owner."""
    if term in unseen:
        return None
    values = _filled(rank, term)
    return sum((_filled(rank, each) for each in unseen), values) if term == UNATTRIBUTED else values


def _filled(rank: RankLedger, term: str) -> Ints:
    values = rank.terms.get(term)
    return np.zeros_like(rank.wall_ns) if values is None else values


def _host_terms(slices: ThreadSlices, *, pool: Bools, count: int) -> dict[str, Ints]:
    """Sum the training thread's own terms outside the pool, evaluation, and all time in parts that are not training."""
    code = np.where(slices.part >= 0, slices.part, slices.code)
    chosen = np.flatnonzero((code >= 0) & ~pool & (slices.step >= 0))
    places = code[chosen].astype(np.int64) * count + slices.step[chosen]
    sums = _summed(places, slices.duration_ns[chosen], len(slices.terms) * count)
    return dict(zip(slices.terms, sums.reshape(len(slices.terms), count), strict=True))


def _exposed_terms(slices: ThreadSlices, split: StallSplit, *, pool: Bools, count: int) -> dict[str, Ints]:
    """Sum its stalls outside the pool by axis."""
    outside = ~pool[split.at]
    terms = {}
    for axis in split.axes:
        chosen = outside & split.on(axis)
        if chosen.any():
            step = slices.step[split.at[chosen]]
            terms[exposed_transfer(axis)] = _summed(step, split.transfer_ns[chosen], count)
            terms[exposed_wait(axis)] = _summed(step, split.wait_ns[chosen], count)
    return terms


def _inside_parts(slices: ThreadSlices, split: StallSplit, *, count: int) -> dict[tuple[str, str], Ints]:
    """Sum the time in parts that are not training by what would own it outside of them."""
    sums: dict[tuple[str, str], Ints] = {}
    for part in np.unique(slices.part[slices.part >= 0]).tolist():
        within = slices.part == part
        elsewhere = replace(slices, code=slices.inside, part=np.full_like(slices.part, -1))
        terms = _host_terms(elsewhere, pool=~within, count=count) | _exposed_terms(
            elsewhere, split, pool=~within, count=count
        )
        sums |= {(slices.terms[part], term): ns for term, ns in terms.items() if ns.any()}
    return sums


def _ambiguous_waits(
    slices: ThreadSlices, split: StallSplit, *, outside: Bools, count: int
) -> dict[tuple[str, AmbiguousWait], Ints]:
    """Sum the transfer outside the pool that may contain wait, by axis and cause."""
    sums = {}
    for axis in split.axes:
        for cause in AmbiguousWait:
            chosen = outside & split.on(axis) & (split.cause == code(cause))
            if chosen.any():
                sums[axis, cause] = _summed(slices.step[split.at[chosen]], split.transfer_ns[chosen], count)
    return sums


def _bubble_terms(numbers: Ints, pool_ns: Ints, idle: Sequence[Idle]) -> dict[str, Ints]:
    """Split the pool by the replays into the bubble's terms and exposed transfer. Jitter is the unexplained rest."""
    known = np.concatenate([replays.numbers for replays in idle] or [numbers[:0]])

    def explained(values: Sequence[Ints]) -> Ints:
        return by_number(numbers, known, np.concatenate([*values, numbers[:0]]), missing=0)

    schedule = explained([replays.schedule_ns for replays in idle])
    imbalance = explained([replays.imbalance_ns for replays in idle])
    transfer = explained([replays.transfer_ns for replays in idle])
    jitter = pool_ns - schedule - imbalance - transfer
    return {
        "bubble.schedule": schedule,
        "bubble.imbalance": imbalance,
        "bubble.jitter": jitter,
        exposed_transfer(PIPELINE_AXIS): transfer,
    }


def _by_step(slices: ThreadSlices, at: Ints, count: int) -> Ints:
    """Sum the time of these slices by step. All of them lie in steps."""
    return _summed(slices.step[at], slices.duration_ns[at], count)


def _summed(places: Numbers, ns: Ints, count: int) -> Ints:
    """Sum `ns` by place in exact integers. Entries without a place (-1) do not count."""
    sums = np.zeros(count + 1, dtype=np.int64)
    np.add.at(sums, places, ns)
    return sums[:count]
