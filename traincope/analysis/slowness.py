"""Steps that took far longer than the others, with the term that grew in them; and steps that were skipped."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.faults import Fault, FaultKind
from traincope.analysis.findings import HIGH, MEDIUM
from traincope.analysis.ledger import Ledger, RankLedger
from traincope.analysis.terms import BUBBLE
from traincope.events import Flag, Kind
from traincope.timeline import Timeline

Ints = NDArray[np.int64]
Usuals = Mapping[tuple[int, str], int]
"""(Rank, term) -> ns in a usual step."""

FEWEST = 16
"""Counted steps from which one can stand out."""
SIGMAS = 8.0
SCALE = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
LEAST_RATIO = 1.5
"""Times the median: a step less long than that is not worth a line, however even the others are."""
MOST = 0.5
"""Share of what a step took longer that one term must have grown by to be named as the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth:
    """What one rank's term took beyond its usual in one step."""

    rank: int
    term: str
    now_ns: int
    usual_ns: int

    @property
    def ns(self) -> int:
        return self.now_ns - self.usual_ns


def slow_steps(timeline: Timeline, ledger: Ledger) -> Iterator[Fault]:
    """Steps beyond the median by `SIGMAS` of the spread (1.4826 times the median absolute deviation) and by half.

    A step is as long as on the rank where it was longest. One that a checkpoint made long is none: the
    checkpoint stands in the stream itself.
    """
    longest = _longest(ledger)
    lengths = np.array(list(longest.values()), dtype=np.int64)
    limit = limit_ns(lengths)
    if limit is None:
        return
    usual = float(np.median(lengths))
    slow = [number for number, ns in longest.items() if ns > limit]
    starts = {step.number: step.start_ns for rank in timeline.ranks for step in rank.steps}
    usuals_ns = _usuals_ns(ledger) if slow else {}
    for number in slow:
        reason = _reason(ledger, number, usuals_ns=usuals_ns, excess_ns=longest[number] - usual)
        if reason is None or reason.term != "checkpoint_stall":
            yield _slow(number, longest[number], usual_ns=usual, reason=reason, at_ns=starts[number])


def limit_ns(lengths_ns: Ints) -> float | None:
    """Above which a step is slow, by the lengths of all; None: they are too few."""
    if len(lengths_ns) < FEWEST:
        return None
    usual = float(np.median(lengths_ns))
    return max(usual + SIGMAS * SCALE * float(np.median(np.abs(lengths_ns - usual))), LEAST_RATIO * usual)


def skipped_steps(timeline: Timeline) -> Iterator[Fault]:
    """Steps whose optimizer a gradient scaler left out, the ranks together."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for rank in timeline.ranks:
        steps = rank.of_kind(Kind.STEP)
        for step in steps[steps["flags"] & Flag.SKIPPED > 0]:
            found[int(step["step"])].append((int(step["start_ns"]), rank.rank))
    for number, there in found.items():
        yield Fault(
            kind=FaultKind.SKIPPED_STEP,
            at_ns=min(there)[0],
            ranks=tuple(sorted(rank for _, rank in there)),
            step=number,
            what="the optimizer was not run: gradients overflowed",
            confidence=HIGH,
        )


def _longest(ledger: Ledger) -> dict[int, int]:
    """Counted step -> its wall time on the rank where it took most."""
    longest: dict[int, int] = {}
    for rank in ledger.ranks:
        pairs = zip(rank.numbers[rank.counted].tolist(), rank.wall_ns[rank.counted].tolist(), strict=True)
        for number, wall_ns in pairs:
            longest[number] = max(wall_ns, longest.get(number, 0))
    return longest


def _slow(number: int, length_ns: int, *, usual_ns: float, reason: _Growth | None, at_ns: int) -> Fault:
    grew = "no one term grew by half of that"
    if reason is not None:
        usual, now = reason.usual_ns / 1e6, reason.now_ns / 1e6
        grew = f"{reason.term} of rank {reason.rank} grew from {usual:.1f} to {now:.1f} ms"
    return Fault(
        kind=FaultKind.SLOW_STEP,
        at_ns=at_ns,
        ranks=() if reason is None else (reason.rank,),
        step=number,
        what=f"took {length_ns / usual_ns:.1f} times the median",
        evidence=f"{length_ns / 1e6:.1f} ms, the median is {usual_ns / 1e6:.1f} ms; {grew}",
        confidence=MEDIUM,
        lasted_ns=length_ns,
    )


def _usuals_ns(ledger: Ledger) -> Usuals:
    """The median of each rank's counted steps."""
    return {
        (rank.rank, term): int(np.median(values[rank.counted]))
        for rank in ledger.ranks
        for term, values in rank.terms.items()
        if values is not None and rank.num_counted
    }


def _reason(ledger: Ledger, number: int, *, usuals_ns: Usuals, excess_ns: float) -> _Growth | None:
    """The own work that grew most, where that is enough; waits for others are its consequence, so they come after."""
    grown = [growth for rank in ledger.ranks for growth in _growths(rank, number, usuals_ns)]
    own = [growth for growth in grown if not _is_waiting(growth.term)]
    for choice in (own, grown):
        most = max(choice, key=lambda growth: growth.ns, default=None)
        if most is not None and most.ns >= MOST * excess_ns:
            return most
    return None


def _is_waiting(term: str) -> bool:
    return term.startswith("exposed_") or term in BUBBLE


def _growths(rank: RankLedger, number: int, usuals_ns: Usuals) -> Iterator[_Growth]:
    at = np.flatnonzero(rank.numbers == number)
    for term, values in rank.terms.items():
        usual_ns = usuals_ns.get((rank.rank, term))
        if values is not None and usual_ns is not None and len(at):
            yield _Growth(rank=rank.rank, term=term, now_ns=int(values[at[0]]), usual_ns=usual_ns)
