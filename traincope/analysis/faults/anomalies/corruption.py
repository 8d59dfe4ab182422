"""Silent corruption of the training's state: what the checks of all ranks show, and how much of the state they cover.

A tensor is voted on if another rank holds a replica of it. It is held if it was compared with itself between two steps
of its optimizer. Both need only the checks in the run directory (`store.job.state_checks`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincope.analysis.confidence import HIGH, MEDIUM
from traincope.analysis.faults.anomalies.held_state import Flip, HeldState
from traincope.analysis.faults.anomalies.replica_votes import Divergence, ReplicaVotes, replica_groups
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.store.job.state_checks import HeldCheck, Layout, StateCheck
from traincope.timeline import Timeline
from traincope.timeline.clocks.clocks import RankClock
from traincope.units import count, numbers

MAX_NAMED = 3
"""With more tensors than this they are counted, not named."""
PAIR = 2

ToAxis = Callable[[int, int], int | None]
"""Converts a rank and a time on its own clock to a time on the timeline's axis; None if its clock is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShare:
    """Coverage of the parameters, or of the optimizer state, by the checks. All are sums over ranks."""

    num_bytes: int
    voted_bytes: int
    """Bytes that were compared with a replica on another rank."""
    held_bytes: int
    """Bytes that were compared with themselves between two steps."""

    @property
    def voted_ratio(self) -> float | None:
        return self.voted_bytes / self.num_bytes if self.num_bytes else None

    @property
    def held_ratio(self) -> float | None:
        return self.held_bytes / self.num_bytes if self.num_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """State that went bad on some ranks, or replicas that differ for another reason."""

    kind: FaultKind
    """CORRUPTED_STATE or REPLICAS_DIFFER."""
    ranks: tuple[int, ...]
    """Ranks with the bad state; both ranks of a pair, and all replicas if there is no majority."""
    step: int
    """Step of the first check that shows it."""
    at_ns: int
    good_ns: int | None
    """The last time at which the checks show that the state was good; None: never."""
    what: str
    evidence: str
    confidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChecks:
    """Checks of parameters and optimizer state for silent corruption. Their faults are in `faults`."""

    num_checks: int
    """Steps with a check on any rank."""
    first_step: int
    last_step: int
    parameters: StateShare
    optimizer_state: StateShare
    check_ns: int
    """Median time of the host for one check: after an optimizer's step, and before its next one."""
    edited_checks: int
    """Checks of a rank between which the program itself wrote to tensors. Such tensors were not held there."""
    corruptions: tuple[Corruption, ...]


class StateEvidence:
    """Evidence about the state, which grows with the checks."""

    def __init__(self) -> None:
        self._votes = ReplicaVotes()
        self._held = HeldState()
        self._divergences: list[Divergence] = []

    def add_checks(self, checks: Mapping[int, StateCheck]) -> None:
        """Add the checks of one optimizer in one step, by rank. Steps come in order."""
        self._divergences += self._votes.add(checks)

    def add_held(self, rank: int, check: HeldCheck) -> None:
        self._held.add(rank, check)

    @property
    def edited_checks(self) -> int:
        return self._held.num_explained + self._held.num_edited

    def corruptions(self, to_axis: ToAxis) -> Iterator[Corruption]:
        """Yield flipped bits, then what only votes show. Those without any rank whose clock is known are left out."""
        flips = list(self._held.flips())
        for flip in flips:
            at_ns = to_axis(flip.rank, flip.at_ns)
            if at_ns is not None:
                yield _of_flip(flip, at_ns=at_ns, good_ns=to_axis(flip.rank, flip.good_ns))
        for divergence in self._divergences:
            at_ns = _earliest(divergence.at_ns, to_axis)
            if at_ns is not None and not any(_explains(flip, divergence) for flip in flips):
                yield _of_divergence(divergence, at_ns=at_ns, good_ns=_earliest(divergence.equal_ns, to_axis))


def state_checks(timeline: Timeline) -> StateChecks | None:
    """Judge the checks of all ranks; None if there are none."""
    read = {rank.rank: rank.state_checks.read() for rank in timeline.run.ranks if rank.state_checks is not None}
    taken = {rank: [check for check in checks if isinstance(check, StateCheck)] for rank, checks in read.items()}
    steps = sorted({check.step for checks in taken.values() for check in checks})
    if not steps:
        return None
    evidence = StateEvidence()
    for together in in_order(taken):
        evidence.add_checks(together)
    held = {rank: [check for check in checks if isinstance(check, HeldCheck)] for rank, checks in read.items()}
    for rank, comparisons in held.items():
        for comparison in comparisons:
            evidence.add_held(rank, comparison)
    parameters, optimizer_state = _coverage(taken, held)
    return StateChecks(
        num_checks=len(steps),
        first_step=steps[0],
        last_step=steps[-1],
        parameters=parameters,
        optimizer_state=optimizer_state,
        check_ns=_median(check.cost_ns for checks in taken.values() for check in checks)
        + _median(check.cost_ns for checks in held.values() for check in checks),
        edited_checks=evidence.edited_checks,
        corruptions=tuple(evidence.corruptions(axis_of(timeline.clocks))),
    )


def corruption_faults(checks: StateChecks | None) -> Iterator[Fault]:
    """One fault for each corruption."""
    yield from map(fault_of, () if checks is None else checks.corruptions)


def fault_of(corruption: Corruption) -> Fault:
    return Fault(
        kind=corruption.kind,
        at_ns=corruption.at_ns,
        ranks=corruption.ranks,
        step=corruption.step,
        what=corruption.what,
        evidence=corruption.evidence,
        confidence=corruption.confidence,
    )


def axis_of(clocks: Iterable[RankClock]) -> ToAxis:
    """Return the conversion of times by these clocks."""
    by_rank = {clock.rank: clock for clock in clocks}

    def to_axis(rank: int, at_ns: int) -> int | None:
        clock = by_rank.get(rank)
        return None if clock is None else int(clock.on_axis(np.array([at_ns], dtype=np.int64))[0])

    return to_axis


def in_order(taken: Mapping[int, Sequence[StateCheck]]) -> Iterator[dict[int, StateCheck]]:
    """Yield the checks of one optimizer in one step, by rank, in order of their steps."""
    together: dict[tuple[int, int], dict[int, StateCheck]] = defaultdict(dict)
    for rank, checks in taken.items():
        for check in checks:
            together[check.step, check.layout.optimizer][rank] = check
    yield from (together[key] for key in sorted(together))


def _coverage(
    taken: Mapping[int, Sequence[StateCheck]], held: Mapping[int, Sequence[HeldCheck]]
) -> tuple[StateShare, StateShare]:
    """Coverage of parameters and of optimizer state, by the last check of each optimizer on each rank."""
    layouts: dict[int, dict[int, Layout]] = defaultdict(dict)
    for rank, checks in taken.items():
        for check in checks:
            layouts[check.layout.optimizer][rank] = check.layout
    written = {rank: _written(checks) for rank, checks in held.items()}
    compared = {rank: {check.layout.optimizer for check in checks} for rank, checks in held.items()}
    sums = np.zeros((2, 3), dtype=np.int64)
    for optimizer, by_rank in layouts.items():
        for group in replica_groups(by_rank):
            for tensor in group.tensors:
                sums[int(tensor.state is not None), 1] += tensor.num_bytes * len(group.ranks)
        for rank, layout in by_rank.items():
            for tensor in layout.tensors:
                is_held = tensor.checked and optimizer in compared[rank] and tensor.key not in written[rank]
                sums[int(tensor.state is not None), [0, 2]] += np.array([1, int(is_held)]) * tensor.num_bytes
    parameters, optimizer_state = (
        StateShare(num_bytes=whole, voted_bytes=voted, held_bytes=compared_bytes)
        for whole, voted, compared_bytes in sums.tolist()
    )
    return parameters, optimizer_state


def _written(checks: Sequence[HeldCheck]) -> set[tuple[str, str | None]]:
    """Tensors that the program wrote between steps in any comparison."""
    return {
        check.layout.tensors[at].key
        for check in checks
        for at in (*check.explained, *(check.changed if len(check.changed) > 1 else ()))
    }


def _median(values: Iterable[int]) -> int:
    collected = list(values)
    return round(float(np.median(collected))) if collected else 0


def _explains(flip: Flip, divergence: Divergence) -> bool:
    """Return whether replicas differ because of this bit."""
    blamed = divergence.odd or (divergence.ranks if len(divergence.ranks) == PAIR else ())
    same = divergence.parameters == (flip.tensor.parameter,) and flip.rank in blamed
    return same and flip.step <= divergence.step and len(divergence.odd) <= 1


def _earliest(times_ns: Mapping[int, int], to_axis: ToAxis) -> int | None:
    """The earliest of these times, by rank, on the axis."""
    known = (to_axis(rank, at_ns) for rank, at_ns in times_ns.items())
    return min((at_ns for at_ns in known if at_ns is not None), default=None)


def _of_flip(flip: Flip, *, at_ns: int, good_ns: int | None) -> Corruption:
    return Corruption(
        kind=FaultKind.CORRUPTED_STATE,
        ranks=(flip.rank,),
        step=flip.step,
        at_ns=at_ns,
        good_ns=good_ns,
        what=f"bit {flip.bit} of an element of {flip.tensor.name} ({flip.tensor.dtype}) flipped on rank {flip.rank}",
        evidence=f"between the optimizer's update of step {flip.step} and its next one; no operation of torch wrote it",
        confidence=HIGH,
    )


def _of_divergence(divergence: Divergence, *, at_ns: int, good_ns: int | None) -> Corruption:
    others = len(divergence.ranks) - len(divergence.odd)
    is_pair = len(divergence.ranks) == PAIR
    single = len(divergence.parameters) == 1 and (is_pair or len(divergence.odd) == 1)
    ranks = divergence.odd or divergence.ranks
    if divergence.odd:
        what = f"{_named(divergence)} on {numbers(ranks, 'rank')} differs from its {others} other replicas"
        hint = (
            ""
            if single
            else "; more than one tensor or rank, so look for a step or a load that only these ranks made or left out"
        )
    else:
        what = f"{_named(divergence)} differs between {numbers(ranks, 'rank')}"
        hint = (
            "; two replicas do not show which of them is wrong"
            if is_pair and single
            else "; no majority, so look for gradients that are not reduced, or for steps that are not the same"
        )
    since = "no earlier check" if divergence.equal_step is None else f"equal after step {divergence.equal_step}"
    return Corruption(
        kind=FaultKind.CORRUPTED_STATE if single else FaultKind.REPLICAS_DIFFER,
        ranks=ranks,
        step=divergence.step,
        at_ns=at_ns,
        good_ns=good_ns,
        what=what,
        evidence=f"{since}, different after step {divergence.step}{hint}",
        confidence=HIGH if divergence.odd and single else MEDIUM,
    )


def _named(divergence: Divergence) -> str:
    parameters = divergence.parameters
    if len(parameters) > MAX_NAMED:
        return f"the state of {len(parameters)} of {count(divergence.num_parameters, 'parameter')}"
    if len(divergence.tensors) == 1:
        return divergence.tensors[0].name
    return ", ".join(parameters)
