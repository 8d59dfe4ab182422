"""Steps that took far longer than the others, with the term that grew in them, and spells of such steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincope.analysis.attribution.terms import BUBBLE, COMPUTE, EVALUATION, EVERY_STEP
from traincope.analysis.confidence import MEDIUM
from traincope.analysis.faults.faults import Fault, FaultKind
from traincope.analysis.ledger.ledger import Ledger, RankLedger, evaluation_by_step
from traincope.arrays import Ints
from traincope.timeline import Timeline

Medians = Mapping[tuple[int, str], int]
"""(Rank, term) -> its median ns per step."""

MIN_STEPS = 16
"""Fewest counted steps to compare with."""
SIGMAS = 8.0
SCALE = 1.4826
"""Standard deviation of normal noise over its median absolute deviation."""
MIN_RATIO = 1.5
"""Times the median. A shorter step is not slow, however even the others are."""
MIN_EXPLAINED = 0.5
"""Share of the excess that one term must have grown by to be named as the reason."""
MIN_SPELL = 3
"""Slow steps by the computation of the same rank that make a spell."""
MAX_DISTANCE = 2
"""Steps from one slow step of a spell to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Growth:
    """Growth of one rank's term over its median in one step."""

    rank: int
    term: str
    step: int
    now_ns: int
    median_ns: int

    @property
    def ns(self) -> int:
        return self.now_ns - self.median_ns


def slow_steps(timeline: Timeline, ledger: Ledger) -> Iterator[Fault]:
    """Steps that take far longer than the median step.

    A slow step exceeds the median by `SIGMAS` times the spread (1.4826 times the median absolute deviation) and by
    half. A step counts with its time on the slowest rank, without the recorder's own time: counting FLOPs makes a few
    steps longer. A step that a checkpoint or a requested kernel trace made long is not slow: both are in the stream.
    The same holds for a step in which the others wait for a checkpoint of the step before.
    """
    for slow in _slow_steps(timeline, ledger):
        if slow.reason is None or slow.reason.term != "checkpoint_stall":
            yield _slow(slow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """Slow steps that follow each other, by the computation of the same rank."""

    rank: int
    first_step: int
    last_step: int
    num_slow: int
    lost_ratio: float
    """Time of the slow steps above the median step, as a share of the time of all steps."""
    times: tuple[float, float]
    """Least and largest length of the slow steps, in medians."""


def slow_spells(timeline: Timeline, ledger: Ledger) -> Iterator[Spell]:
    """Spells of at least `MIN_SPELL` slow steps, in order of steps."""
    spell: list[_SlowStep] = []
    for slow in _slow_steps(timeline, ledger):
        if slow.reason is None or slow.reason.term not in COMPUTE:
            continue
        if spell and not _continues(spell[-1], slow):
            yield from _spell(spell)
            spell = []
        spell.append(slow)
    yield from _spell(spell)


def _continues(last: "_SlowStep", slow: "_SlowStep") -> bool:
    return slow.rank == last.rank and slow.number - last.number <= MAX_DISTANCE


def _spell(slow: Sequence["_SlowStep"]) -> Iterator[Spell]:
    if len(slow) < MIN_SPELL or slow[0].rank is None:
        return
    times = [step.length_ns / step.median_ns for step in slow]
    yield Spell(
        rank=slow[0].rank,
        first_step=slow[0].number,
        last_step=slow[-1].number,
        num_slow=len(slow),
        lost_ratio=sum(step.length_ns - step.median_ns for step in slow) / slow[0].run_ns,
        times=(min(times), max(times)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlowStep:
    number: int
    length_ns: int
    at_ns: int
    reason: _Growth | None
    median_ns: float
    """Of all steps."""
    run_ns: int
    """Sum of all steps."""

    @property
    def rank(self) -> int | None:
        return None if self.reason is None else self.reason.rank


def _slow_steps(timeline: Timeline, ledger: Ledger) -> Iterator[_SlowStep]:
    longest = longest_steps(timeline, ledger)
    lengths = np.array(list(longest.values()), dtype=np.int64)
    limit = limit_ns(lengths)
    if limit is None:
        return
    median = float(np.median(lengths))
    slow = [number for number, ns in longest.items() if ns > limit]
    starts = {step.number: step.start_ns for rank in timeline.ranks for step in rank.steps}
    medians_ns = _medians_ns(ledger) if slow else {}
    for number in slow:
        yield _SlowStep(
            number=number,
            length_ns=longest[number],
            at_ns=starts[number],
            reason=_reason(timeline, ledger, number, medians_ns=medians_ns, excess_ns=longest[number] - median),
            median_ns=median,
            run_ns=int(lengths.sum()),
        )


def limit_ns(lengths_ns: Ints) -> float | None:
    """Length above which a step is slow; None: too few steps, or steps of nothing but the recorder's own time."""
    median = float(np.median(lengths_ns)) if len(lengths_ns) >= MIN_STEPS else 0.0
    if median <= 0:
        return None
    return max(median + SIGMAS * SCALE * float(np.median(np.abs(lengths_ns - median))), MIN_RATIO * median)


def longest_steps(timeline: Timeline, ledger: Ledger) -> dict[int, int]:
    """Step -> its time on the rank where it took longest, for steps with and without detail."""
    longest: dict[int, int] = {}
    own_ns = {(rank.rank, step.number): step.own_ns for rank in timeline.ranks for step in rank.steps}
    for rank in ledger.ranks:
        pairs = zip(rank.numbers[rank.timed].tolist(), rank.wall_ns[rank.timed].tolist(), strict=True)
        for number, wall_ns in pairs:
            if any(request.delays(number) for request in timeline.run.requests):
                continue
            longest[number] = max(wall_ns - own_ns[rank.rank, number], longest.get(number, 0))
    return longest


def _slow(slow: _SlowStep) -> Fault:
    grew, reason = "no term grew by half of the excess", slow.reason
    if reason is not None:
        before = "" if reason.step == slow.number else f" in step {reason.step}, and the others wait for it"
        median, now = reason.median_ns / 1e6, reason.now_ns / 1e6
        grew = f"{reason.term} of rank {reason.rank} grew from {median:.1f} to {now:.1f} ms{before}"
    length, usual = slow.length_ns / 1e6, slow.median_ns / 1e6
    return Fault(
        kind=FaultKind.SLOW_STEP,
        at_ns=slow.at_ns,
        ranks=() if reason is None else (reason.rank,),
        step=slow.number,
        what=f"took {slow.length_ns / slow.median_ns:.1f} times the median",
        evidence=f"{length:.1f} ms on its slowest rank, the median there is {usual:.1f} ms; {grew}",
        confidence=MEDIUM,
        lasted_ns=slow.length_ns,
    )


def _medians_ns(ledger: Ledger) -> Medians:
    """Median of each term over each rank's counted steps."""
    return {
        (rank.rank, term): int(np.median(values[rank.counted]))
        for rank in ledger.ranks
        for term, values in rank.terms.items()
        if values is not None and rank.num_counted
    }


def _reason(
    timeline: Timeline, ledger: Ledger, number: int, *, medians_ns: Medians, excess_ns: float
) -> _Growth | None:
    """The work that grew most, if it explains enough. Waits are a consequence of work, so they come last.

    Work that stopped a rank in the step before makes the others wait in this one.
    """
    grown = [growth for rank in ledger.ranks for growth in _growths(rank, number, medians_ns)]
    before = [growth for rank in ledger.ranks for growth in _growths(rank, number - 1, medians_ns)]
    evaluated = [
        growth for rank in ledger.ranks for at in (number, number - 1) for growth in _evaluation(timeline, rank, at)
    ]
    own_work = [growth for growth in grown if not _is_waiting(growth.term)]
    stops = [*(growth for growth in before if growth.term in EVERY_STEP), *evaluated]
    for choice in (own_work, stops, grown):
        largest = max(choice, key=lambda growth: growth.ns, default=None)
        if largest is not None and largest.ns >= MIN_EXPLAINED * excess_ns:
            return largest
    return None


def _is_waiting(term: str) -> bool:
    return term.startswith("exposed_") or term in BUBBLE


def _growths(rank: RankLedger, number: int, medians_ns: Medians) -> Iterator[_Growth]:
    at = np.flatnonzero(rank.numbers == number)
    for term, values in rank.terms.items():
        median_ns = medians_ns.get((rank.rank, term))
        known = len(at) and (rank.detailed[at[0]] or term in rank.every_step)
        if values is not None and median_ns is not None and known:
            now_ns = int(values[at[0]])
            yield _Growth(rank=rank.rank, term=term, step=number, now_ns=now_ns, median_ns=median_ns)


def _evaluation(timeline: Timeline, rank: RankLedger, number: int) -> Iterator[_Growth]:
    """Yield a rank's evaluation in a step: it is no part of that rank's step, and the others wait."""
    for at in np.flatnonzero(rank.numbers == number) if rank.evaluation_ns else ():
        now_ns = int(evaluation_by_step(timeline, rank)[at])
        yield _Growth(rank=rank.rank, term=EVALUATION, step=number, now_ns=now_ns, median_ns=0)
