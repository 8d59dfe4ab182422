"""Slowdown of a job by stragglers, from its table of operations: what it loses, and to what.

As in "Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al., OSDI 2025). T is the mean
step time of a replay of the operations as recorded, without delays before they begin. T_ideal is that of a replay in
which every operation takes what its kind takes on average over data-parallel ranks, stages and steps: the mean for
computations, the median of the transfers for communication. S = T / T_ideal (equation 1). A part X of the operations
explains M_X = (T - T with X's operations at their ideal) / (T - T_ideal) (equation 5). It can exceed 1.

The slowest workers are the slowest 3 %. A worker's own slowdown is that of its data-parallel rank or of its stage,
whichever is smaller, each with only its operations as recorded (equation 4): so the cost grows with the sum of both
numbers, not with their product.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from traincope.analysis.stragglers.operation_order import COMPUTE, Order, operation_order
from traincope.analysis.stragglers.stretches import Stretch, slow_stretches
from traincope.arrays import BEFORE_ALL_NS, Bools, Floats, Ints
from traincope.store.side_tables.operations import OperationKind, Operations

STRAGGLING_RATIO = 1.1
"""S from which stragglers are a cause worth naming. This and the thresholds below are ours."""
EXPLAINED = 0.5
"""Share of the loss from which a part of the operations is its cause: M_W or M_S."""
CORRELATED = 0.9
"""Correlation of a microbatch's forward and backward time from which its length explains both."""
SLOWEST_PERCENT = 3
MEASURABLE = 0.001
"""Smallest loss, relative to the ideal step, of which shares are computed."""
MIN_PAIRS = 3
"""Fewest microbatches of a worker that a correlation needs."""
FAITHFUL_RATIO = 1.05
"""A replay without delays that is longer than the recorded step by more than this does not describe the job."""
ALONG_STAGES = 0.7
"""Smallest correlation of a microbatch's forward times along the stages if its length causes them: half the variance.

Workers that are slow in turn have equal forwards and backwards too, but not along the stages.
"""
LOCAL = (*COMPUTE, OperationKind.OPTIMIZER, OperationKind.GC)
"""Kinds that no other rank takes part in."""
EQUAL_RATIO = 1e-6
"""Relative deviation below which times are equal, apart from rounding."""


class SlowdownCause(StrEnum):
    """Cause of a slowdown; the value is its name in JSON."""

    WORKER = "worker"
    LAST_STAGE = "last_stage"
    SEQUENCE_LENGTH = "sequence_length"
    NONE = "none"
    """The job does not straggle: S is below 1.1."""
    UNKNOWN = "unknown"


NOTHING_KNOWN = "no operation of the table has a known type, so nothing can be replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Cost of stragglers in a job that was imported from a table of operations (docs/reference/tables.md).

    Shares are None if the job loses almost nothing. They can exceed 1.
    """

    ratio: float | None
    """S: replayed over ideal step time. None if the operations cannot be replayed."""
    worker_share: float | None
    """M_W: share of the loss that the slowest 3 % of the workers explain."""
    last_stage_share: float | None
    """M_S: share of the loss that the last stage explains."""
    sequence_length_share: float | None
    """Share of the loss that remains if workers differ only in the times of single microbatches."""
    correlation: float | None
    """Correlation of the forward and backward times of a microbatch: the median over workers and parts of the model.
    None with fewer than 3 microbatches of a worker, or with equal times.
    """
    stage_correlation: float | None
    """The same of a microbatch's forward times on neighbouring parts of the model."""
    excess_ratio: float | None
    """Mean time of the cause's computations / that of the others - 1: of the slowest worker and its peers in the
    stage, or of the last stage and the other stages. None for other causes, and without others.
    """
    worker: int | None
    """Rank of the slowest worker. None if the shares are."""
    slowest: tuple[int, ...]
    """Ranks of the slowest 3 % of the workers, the slowest first."""
    last_stage: tuple[int, ...]
    """Ranks of the last stage."""
    cause: SlowdownCause
    reason: str | None
    """Why the cause is unknown."""
    steps: int
    step_ns: int
    """Mean step time as recorded."""
    replayed_ns: int | None
    """Mean step time of the replay without delays: T."""
    ideal_ns: int | None
    """The same with average operations: T_ideal."""
    unknown_operations: int
    """Operations of unknown types; the replay leaves them out."""
    stretches: tuple[Stretch, ...]
    """Steps in which one rank computes more slowly than in its others, in order."""

    @property
    def gain_ratio(self) -> float | None:
        """Share of the step time that is saved without the cause, at most to the ideal time."""
        shares = {
            SlowdownCause.WORKER: self.worker_share,
            SlowdownCause.LAST_STAGE: self.last_stage_share,
            SlowdownCause.SEQUENCE_LENGTH: self.sequence_length_share,
        }
        share = shares.get(self.cause)
        if share is None or self.replayed_ns is None or self.ideal_ns is None:
            return None
        return min(share, 1.0) * (self.replayed_ns - self.ideal_ns) / self.step_ns


def slowdown(operations: Operations | None) -> Slowdown | None:
    """Compute the slowdown of a job; None if it was not imported from a table of operations."""
    if operations is None:
        return None
    known = operations.only(operations.known)
    order = operation_order(known) if len(known) else None
    what_if = None if order is None else WhatIf(known, order)
    shares = _Shares.of(what_if)
    cause, reason = _cause(what_if, shares, recorded_ns=_recorded_ns(operations))
    if not len(known):
        reason = NOTHING_KNOWN
    in_last_stage = operations.stage == operations.num_stages - 1
    return Slowdown(
        ratio=None if what_if is None else what_if.ratio,
        worker_share=shares.worker,
        last_stage_share=shares.last_stage,
        sequence_length_share=shares.sequence_length,
        correlation=shares.correlation,
        stage_correlation=shares.stage_correlation,
        excess_ratio=None if what_if is None else _excess(what_if, cause, shares),
        worker=shares.slowest[0] if shares.slowest else None,
        slowest=shares.slowest,
        last_stage=tuple(np.unique(operations.rank[in_last_stage]).tolist()),
        cause=cause,
        reason=reason,
        steps=len(np.unique(operations.step)),
        step_ns=round(_recorded_ns(operations)),
        replayed_ns=None if what_if is None else round(what_if.replayed_ns),
        ideal_ns=None if what_if is None else round(what_if.ideal_ns),
        unknown_operations=len(operations) - len(known),
        stretches=slow_stretches(operations),
    )


class WhatIf:
    """Replays of a job in which some operations take their ideal time."""

    def __init__(self, operations: Operations, order: Order) -> None:
        self.operations = operations
        self._order = order
        self.durations_ns = _own_ns(operations, order)
        self._ideal_ns = _ideal_ns(operations, self.durations_ns)
        self.replayed_ns = self._mean_step_ns(self.durations_ns)
        self.ideal_ns = self._mean_step_ns(self._ideal_ns)

    @property
    def ratio(self) -> float | None:
        """S."""
        return self.replayed_ns / self.ideal_ns if self.ideal_ns else None

    @property
    def loses(self) -> bool:
        """Return whether the loss is large enough to be shared out."""
        return self.replayed_ns > self.ideal_ns * (1 + MEASURABLE)

    def slowest(self) -> tuple[int, ...]:
        """Return the ranks of the slowest 3 % of the workers, at least one, the slowest first."""
        operations = self.operations
        replicas = [self._only_recorded(operations.dp_rank == at) for at in range(operations.num_replicas)]
        stages = [self._only_recorded(operations.stage == at) for at in range(operations.num_stages)]
        ranks, first = np.unique(operations.rank, return_index=True)
        places = zip(operations.dp_rank[first].tolist(), operations.stage[first].tolist(), strict=True)
        own_ns = [min(replicas[dp_rank], stages[stage]) for dp_rank, stage in places]
        ordered = sorted(zip(own_ns, ranks.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1]))
        return tuple(rank for _, rank in ordered[: -(-len(ranks) * SLOWEST_PERCENT // 100)])

    def explained(self, chosen: Bools) -> float:
        """Return the share of the loss that the chosen operations explain."""
        return self._share_without(np.where(chosen, self._ideal_ns, self.durations_ns))

    def lost_to_microbatches(self) -> float:
        """Return the share of the loss that remains if workers differ only in the times of single microbatches.

        Each computation takes the ideal time, times its own time over the mean of its worker's in the same part.
        """
        operations = self.operations
        varied_ns = self._ideal_ns.copy()
        for kind in COMPUTE:
            rows = np.flatnonzero(operations.are(kind))
            own_ns = self.durations_ns[rows]
            usual_ns = _means(own_ns, np.stack([operations.rank[rows], operations.part[rows]], axis=1))
            varied_ns[rows] *= np.divide(own_ns, usual_ns, out=np.ones(len(rows)), where=usual_ns > 0)
        return (self._mean_step_ns(varied_ns) - self.ideal_ns) / (self.replayed_ns - self.ideal_ns)

    def _only_recorded(self, chosen: Bools) -> float:
        return self._mean_step_ns(np.where(chosen, self.durations_ns, self._ideal_ns))

    def _share_without(self, durations_ns: Floats) -> float:
        return (self.replayed_ns - self._mean_step_ns(durations_ns)) / (self.replayed_ns - self.ideal_ns)

    def _mean_step_ns(self, durations_ns: Floats) -> float:
        return float(self._order.replay(durations_ns).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shares:
    """Evidence for the cause. Shares are None, and `slowest` is empty, if the job loses almost nothing."""

    worker: float | None = None
    last_stage: float | None = None
    sequence_length: float | None = None
    slowest: tuple[int, ...] = ()
    correlation: float | None = None
    stage_correlation: float | None = None

    @property
    def vary_together(self) -> bool:
        """Return whether the computations of a microbatch are long or short together. One stage has no neighbours."""
        along = self.stage_correlation
        return (self.correlation or 0.0) >= CORRELATED and (along is None or along >= ALONG_STAGES)

    @classmethod
    def of(cls, what_if: WhatIf | None) -> "_Shares":
        if what_if is None:
            return cls()
        operations = what_if.operations
        correlation = _correlation(what_if.durations_ns, _directions(operations))
        along = _correlation(what_if.durations_ns, _neighbours(operations))
        if not what_if.loses:
            return cls(correlation=correlation, stage_correlation=along)
        slowest = what_if.slowest()
        return cls(
            worker=what_if.explained(np.isin(operations.rank, slowest)),
            last_stage=what_if.explained(operations.stage == operations.num_stages - 1),
            sequence_length=what_if.lost_to_microbatches(),
            slowest=slowest,
            correlation=correlation,
            stage_correlation=along,
        )


def _cause(what_if: WhatIf | None, shares: _Shares, *, recorded_ns: float) -> tuple[SlowdownCause, str | None]:
    """Return the cause, and the reason if it is unknown.

    Unequal lengths come before the last stage: they are longest where a stage is heavy, so the last
    stage then explains much of the same loss.
    """
    if what_if is None:
        return SlowdownCause.UNKNOWN, "the operations wait for each other in a circle, so they cannot be replayed"
    if what_if.replayed_ns > recorded_ns * FAITHFUL_RATIO:
        longer = what_if.replayed_ns / recorded_ns - 1
        why = f"the replay is {100 * longer:.1f} % longer than the recorded steps, so it does not describe the job"
        return SlowdownCause.UNKNOWN, why
    if what_if.ratio is None or what_if.ratio < STRAGGLING_RATIO:
        return SlowdownCause.NONE, None
    if (shares.worker or 0.0) >= EXPLAINED:
        return SlowdownCause.WORKER, None
    if shares.vary_together and (shares.sequence_length or 0.0) >= EXPLAINED:
        return SlowdownCause.SEQUENCE_LENGTH, None
    if what_if.operations.num_stages > 1 and (shares.last_stage or 0.0) >= EXPLAINED:
        return SlowdownCause.LAST_STAGE, None
    return SlowdownCause.UNKNOWN, "neither few workers, the last stage nor unequal microbatches explain the loss"


def _excess(what_if: WhatIf, cause: SlowdownCause, shares: _Shares) -> float | None:
    operations = what_if.operations
    computes = operations.are(*COMPUTE)
    if cause is SlowdownCause.WORKER:
        chosen = operations.rank == shares.slowest[0]
        others = (operations.stage == operations.stage[chosen][0]) & ~chosen
    elif cause is SlowdownCause.LAST_STAGE:
        chosen = operations.stage == operations.num_stages - 1
        others = ~chosen
    else:
        return None
    if not (others & computes).any() or not (chosen & computes).any():
        return None
    own_ns, usual_ns = (float(what_if.durations_ns[rows & computes].mean()) for rows in (chosen, others))
    return own_ns / usual_ns - 1 if usual_ns else None


def _recorded_ns(operations: Operations) -> float:
    """Return the mean of the steps' times, from the first begin to the last end on any worker."""
    _, first_ns, last_ns = operations.step_bounds()
    return float((last_ns - first_ns).mean())


def _own_ns(operations: Operations, order: Order) -> Floats:
    """Return the duration of each operation; of communication the transfer, from the begin of its last member."""
    own_ns = (operations.end_ns - operations.start_ns).astype(np.float64)
    parts = order.communication >= 0
    last_begin_ns = np.full(int(order.communication.max(initial=-1)) + 1, BEFORE_ALL_NS)
    np.maximum.at(last_begin_ns, order.communication[parts], operations.start_ns[parts])
    transfer_ns = operations.end_ns[parts] - last_begin_ns[order.communication[parts]]
    own_ns[parts] = np.maximum(transfer_ns, 0)
    return own_ns


def _ideal_ns(operations: Operations, own_ns: Floats) -> Floats:
    """Return what each operation takes if it takes what its kind does: the mean, for communication the median."""
    ideal_ns = own_ns.copy()
    for number, name in enumerate(operations.kinds):
        rows = operations.kind == number
        if rows.any():
            ideal_ns[rows] = own_ns[rows].mean() if name in LOCAL else np.median(own_ns[rows])
    return ideal_ns


def _means(values: Floats, keys: Ints) -> Floats:
    """Return for each value the mean of those with the same key."""
    _, number = np.unique(keys, axis=0, return_inverse=True)
    number = number.reshape(-1)
    means: Floats = (np.bincount(number, weights=values) / np.bincount(number))[number]
    return means


Pairs = Iterator[tuple[Ints, Ints]]
"""Rows of operations to compare, element by element."""


def _directions(operations: Operations) -> Pairs:
    """Yield the forwards and backwards of the same microbatches, for each worker and part of the model."""
    forwards, backwards = (_by_microbatch(operations, kind, axis=operations.rank) for kind in COMPUTE)
    for key in forwards.keys() & backwards.keys():
        yield forwards[key], backwards[key]


def _neighbours(operations: Operations) -> Pairs:
    """Yield the forwards of the same microbatches on neighbouring parts of the model, for each data-parallel rank."""
    forwards = _by_microbatch(operations, OperationKind.FORWARD, axis=operations.dp_rank)
    for dp_rank, part in forwards:
        if (dp_rank, part + 1) in forwards:
            yield forwards[dp_rank, part], forwards[dp_rank, part + 1]


def _by_microbatch(operations: Operations, kind: OperationKind, *, axis: Ints) -> dict[tuple[int, int], Ints]:
    """Return (number on the axis, part of the model) -> its rows in order of step and microbatch."""
    rows = np.flatnonzero(operations.are(kind))
    if not len(rows):
        return {}
    place = np.stack([axis[rows], operations.part[rows]], axis=1)
    order = np.lexsort((operations.microbatch[rows], operations.step[rows], place[:, 1], place[:, 0]))
    rows, place = rows[order], place[order]
    keys, first = np.unique(place, axis=0, return_index=True)
    return {
        (int(key[0]), int(key[1])): chosen for key, chosen in zip(keys, np.split(rows, np.sort(first)[1:]), strict=True)
    }


def _correlation(own_ns: Floats, pairs: Pairs) -> float | None:
    """Return the median over the pairs of the correlation of their durations; None if no pair has one."""
    found = []
    for first, second in pairs:
        x, y = own_ns[first], own_ns[second]
        if len(x) == len(y) >= MIN_PAIRS and min(x.std() / (x.mean() or 1), y.std() / (y.mean() or 1)) > EQUAL_RATIO:
            found.append(float(np.corrcoef(x, y)[0, 1]))
    return float(np.median(found)) if found else None
