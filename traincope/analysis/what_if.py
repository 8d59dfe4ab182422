"""What a step would take if something of it took longer or shorter: the recorded steps, played again with that changed.

A change is a name and a factor, `tp.transfer=0.5`: a term of a rank's own (`data_wait=0`), `compute` for all that
trains (`rank3.compute=0.9`), the wire of an axis (`tp.transfer`), or how late its ranks come to its collectives
(`dp.wait=0`: all as early as the first). The replay (`what_if_replay`) keeps the order of everything and who waits for
whom.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import mean, median

import numpy as np

from traincope.analysis.analyze import Analysis
from traincope.analysis.host import cut
from traincope.analysis.releases import releases
from traincope.analysis.stalls import split_stalls
from traincope.analysis.stragglers import last_to_arrive
from traincope.analysis.terms import COMPUTE, EVALUATION, HOST_TERMS, exposed_transfer, exposed_wait
from traincope.analysis.transfers import transfers
from traincope.analysis.what_if_moves import Moves, rank_moves, together
from traincope.analysis.what_if_replay import Factors, replay
from traincope.errors import UsageError
from traincope.timeline import match_instances
from traincope.topology import axis_order

ALL_COMPUTE = "compute"
OWN_TERMS = tuple(term for term in HOST_TERMS if term != EVALUATION)
CHANGE = re.compile(r"\s*(?:rank(?P<rank>\d+)\.)?(?P<name>[^=\s]+)\s*=\s*(?P<factor>\S+)\s*")
BETWEEN = re.compile(r",(?=\s*[A-Za-z_])")
"""Changes; a comma before a digit is part of an axis' name, as in group:0,1."""
MOST_RECORDS = 300_000
"""Of the last steps that are played: a few seconds' work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One of an expression."""

    text: str
    terms: tuple[str, ...]
    """Ledger terms it is of: own ones, or one exposed_transfer or exposed_wait."""
    rank: int | None
    """None: all of them."""
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Step times of the job, ns, one entry a step that was played."""

    changes: tuple[Change, ...]
    steps: tuple[int, ...] = ()
    """Numbers of the last steps that count, that follow each other, and that all ranks completed."""
    recorded_ns: tuple[int, ...] = ()
    replayed_ns: tuple[int, ...] = ()
    """Played again as they were: what that misses of `recorded_ns`, the prediction may miss."""
    changed_ns: tuple[int, ...] = ()
    """Played with the changes."""
    least_ns: tuple[int, ...] = ()
    """The same, if what nobody saw the end of had taken no time on the wire."""
    reason: str | None = None
    """Why there is none."""

    @property
    def ratio(self) -> float:
        """Predicted over recorded time of these steps."""
        return sum(self.changed_ns) / sum(self.replayed_ns)

    @property
    def mean_ns(self) -> float:
        return mean(self.recorded_ns)

    @property
    def predicted_mean_ns(self) -> float:
        return self.mean_ns * self.ratio

    @property
    def median_ns(self) -> float:
        return median(self.recorded_ns)

    @property
    def predicted_median_ns(self) -> float:
        return self.median_ns * median(self.changed_ns) / median(self.replayed_ns)

    @property
    def least_mean_ns(self) -> float:
        """Less than this it would not be, whatever wires took of which nobody saw how long."""
        return self.mean_ns * sum(self.least_ns) / sum(self.replayed_ns)

    @property
    def replay_error_ratio(self) -> float:
        """Of the replay without changes, over the recorded time."""
        return sum(self.replayed_ns) / sum(self.recorded_ns) - 1


def parse_changes(expression: str, analysis: Analysis) -> tuple[Change, ...]:
    """Of that run. Raises UsageError for what is no change, or of nothing that the run has."""
    return tuple(_change(part, analysis) for part in BETWEEN.split(expression))


def _change(text: str, analysis: Analysis) -> Change:
    found = CHANGE.fullmatch(text)
    if found is None:
        raise UsageError(f"{text.strip()!r} is no change: write NAME=FACTOR, as tp.transfer=0.5 or rank3.compute=0.9")
    rank = None if found["rank"] is None else int(found["rank"])
    if rank is not None and rank not in {one.rank for one in analysis.ledger.ranks}:
        raise UsageError(f"{text.strip()}: rank {rank} completed no step; give one of the run's ranks")
    terms = _terms(found["name"], analysis)
    if rank is not None and terms[0] not in OWN_TERMS:
        raise UsageError(f"{text.strip()}: an axis is changed for all its ranks; leave out rank{rank}")
    return Change(text=text.strip(), terms=terms, rank=rank, factor=_factor(found["factor"], text))


def _terms(name: str, analysis: Analysis) -> tuple[str, ...]:
    known = dict(_names(analysis))
    if name not in known:
        raise UsageError(f"nothing of this run is called {name}; what can be changed: {', '.join(known)}")
    return known[name]


def _names(analysis: Analysis) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What can be changed, and the ledger terms of it. An axis' wire may be hidden wholly, and so in no term."""
    yield ALL_COMPUTE, COMPUTE
    yield from ((term, (term,)) for term in OWN_TERMS)
    for axis in sorted({row.axis for row in analysis.comm}, key=axis_order):
        yield f"{axis}.transfer", (exposed_transfer(axis),)
        if exposed_wait(axis) in analysis.ledger.order:
            yield f"{axis}.wait", (exposed_wait(axis),)


def _factor(text: str, change: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = -1.0
    if not (isfinite(factor) and factor >= 0):
        raise UsageError(f"{change.strip()}: {text} is no factor; give a number from 0 on, 0.5 for half the time")
    return factor


def what_if(analysis: Analysis, changes: Sequence[Change]) -> Prediction:
    """The steps played with all changes together."""
    path = analysis.critical_path
    if path is None or not path.steps:
        return Prediction(changes=tuple(changes), reason=_why_not(analysis))
    recorded = {step.number: step.wall_ns for step in path.steps}
    numbers = _last_steps(analysis, tuple(recorded))
    moves = _moves(analysis, numbers)
    factors = _factors(changes)
    replayed, changed = replay(moves, Factors({})), replay(moves, Factors(factors))
    least = replay(moves, Factors(factors, unseen=0.0))
    if replayed is None or changed is None or least is None:
        reason = "its ranks' collectives cannot be put in one order: some rank waits for what another begins later"
        return Prediction(changes=tuple(changes), reason=reason)
    return Prediction(
        changes=tuple(changes),
        steps=numbers,
        recorded_ns=tuple(recorded[number] for number in numbers),
        replayed_ns=replayed,
        changed_ns=changed,
        least_ns=least,
    )


def _why_not(analysis: Analysis) -> str:
    path = analysis.critical_path
    return "no step of it counts" if path is None or path.reason is None else path.reason


def _factors(changes: Sequence[Change]) -> dict[tuple[int | None, str], float]:
    """Of what is changed several times, the product."""
    factors: dict[tuple[int | None, str], float] = {}
    for change in changes:
        for term in change.terms:
            factors[change.rank, term] = factors.get((change.rank, term), 1.0) * change.factor
    return factors


def _last_steps(analysis: Analysis, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Of these, which rise, the last that follow each other, as far as they are few enough records."""
    records = sum(len(rank.main) for rank in analysis.timeline.ranks)
    most = max(1, MOST_RECORDS * max(len(rank.numbers) for rank in analysis.ledger.ranks) // max(records, 1))
    gaps = np.flatnonzero(np.diff(numbers) != 1)
    return numbers[max(int(gaps[-1]) + 1 if len(gaps) else 0, len(numbers) - most) :]


def _moves(analysis: Analysis, numbers: tuple[int, ...]) -> dict[int, Moves]:
    """Of all ranks that completed steps, cut anew: an analysis keeps no pieces."""
    timeline = analysis.timeline
    instances = match_instances(timeline)
    wire, last = transfers(timeline, instances), last_to_arrive(instances)
    ranks = [rank for rank in timeline.ranks if rank.steps]
    begun = together(ranks, instances, first=numbers[0], last=numbers[-1])
    moves = {}
    for rank in ranks:
        pieces = cut(rank, window_ends=np.empty(0, dtype=np.int64))
        split = split_stalls(rank, pieces, instances=instances)
        released = releases(rank, pieces, split, instances=instances, wire=wire, last=last)
        moves[rank.rank] = rank_moves(rank, pieces, split, released, begun, wire=wire)
    return moves
