"""Step time if a part of it took longer or shorter: the recorded steps, replayed with that change.

A change is a name and a factor, `tp.transfer=0.5`. The name is a ledger term of the rank's work (`data_wait=0`),
`compute` for all training work (`rank3.compute=0.9`), the transfers of an axis (`tp.transfer`), or how late ranks join
its collectives (`dp.wait=0`: all as early as the first). The replay (`replaying.replay`) keeps the order of work and
the dependencies between ranks.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import mean, median

from traincope.analysis.analyze import Analysis
from traincope.analysis.attribution.releases import releases
from traincope.analysis.attribution.terms import COMPUTE, EVALUATION, HOST_TERMS, exposed_transfer, exposed_wait
from traincope.analysis.replaying.moves import Moves
from traincope.analysis.replaying.recorded import StepMoves, last_steps
from traincope.analysis.replaying.replay import Factors, replay
from traincope.errors import UsageError
from traincope.topology import axis_order

ALL_COMPUTE = "compute"
RANK_TERMS = tuple(term for term in HOST_TERMS if term != EVALUATION)
CHANGE = re.compile(r"\s*(?:rank(?P<rank>\d+)\.)?(?P<name>[^=\s]+)\s*=\s*(?P<factor>\S+)\s*")
SEPARATOR = re.compile(r",(?=\s*[A-Za-z_])")
"""Separates changes. A comma before a digit is part of an axis name, as in group:0,1."""
NO_ORDER = "the collectives of its ranks have no common order: a rank waits for one that another rank begins later"
MAX_RECORDS = 300_000
"""Records of the last steps that are replayed: a few seconds of computing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of an expression."""

    text: str
    terms: tuple[str, ...]
    """Ledger terms that change: terms of the rank's work, or one exposed_transfer or exposed_wait."""
    rank: int | None
    """Rank that changes; None: all ranks."""
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Step times of the job, ns, one entry for each replayed step."""

    changes: tuple[Change, ...]
    steps: tuple[int, ...] = ()
    """Numbers of the last counted steps that all ranks completed."""
    recorded_ns: tuple[int, ...] = ()
    replayed_ns: tuple[float, ...] = ()
    """Replay without changes. Its difference from `recorded_ns` is the error to expect of the prediction."""
    changed_ns: tuple[float, ...] = ()
    """Replay with the changes."""
    lower_bound_ns: tuple[float, ...] = ()
    """Replay with the changes if transfers without a measured time took no time."""
    reason: str | None = None
    """Reason for a missing prediction."""

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
    def lower_bound_mean_ns(self) -> float:
        """Lower bound of the predicted mean, whatever the unmeasured transfers took."""
        return self.mean_ns * sum(self.lower_bound_ns) / sum(self.replayed_ns)

    @property
    def replay_error_ratio(self) -> float:
        """Relative error of the replay without changes against the recorded time."""
        return sum(self.replayed_ns) / sum(self.recorded_ns) - 1


def parse_changes(expression: str, analysis: Analysis) -> tuple[Change, ...]:
    """Parse an expression for this run. Raises UsageError for what is not a change, or changes nothing of this run."""
    return tuple(_change(part, analysis) for part in SEPARATOR.split(expression))


def _change(text: str, analysis: Analysis) -> Change:
    match = CHANGE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text.strip()!r} is not a change: write NAME=FACTOR, for example tp.transfer=0.5 or rank3.compute=0.9"
        )
    rank = None if match["rank"] is None else int(match["rank"])
    if rank is not None and rank not in {rank_ledger.rank for rank_ledger in analysis.ledger.ranks}:
        raise UsageError(f"{text.strip()}: rank {rank} completed no step; name a rank of the run that did")
    terms = _terms(match["name"], analysis)
    if rank is not None and terms[0] not in RANK_TERMS:
        raise UsageError(f"{text.strip()}: a change of an axis applies to all its ranks; remove rank{rank}")
    return Change(text=text.strip(), terms=terms, rank=rank, factor=_factor(match["factor"], text))


def _terms(name: str, analysis: Analysis) -> tuple[str, ...]:
    known = dict(_changeable(analysis))
    if name not in known:
        raise UsageError(f"this run has no {name} to change; choose one of {', '.join(known)}")
    return known[name]


def _changeable(analysis: Analysis) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names that can be changed, with their ledger terms.

    An axis' transfers may be hidden completely, and so in no term.
    """
    yield ALL_COMPUTE, COMPUTE
    yield from ((term, (term,)) for term in RANK_TERMS)
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
        raise UsageError(
            f"{change.strip()}: {text} is not a factor; give a number of at least 0, for example 0.5 for half the time"
        )
    return factor


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSteps:
    """The last counted steps, as moves."""

    numbers: tuple[int, ...]
    recorded_ns: tuple[int, ...]
    moves: Mapping[int, Moves]


def recorded_steps(analysis: Analysis) -> RecordedSteps | None:
    """The steps that can be replayed; None without a counted step that all ranks completed."""
    path = analysis.critical_path
    if path is None or not path.steps:
        return None
    recorded = {step.number: step.wall_ns for step in path.steps}
    numbers = last_steps(analysis.timeline, tuple(recorded), max_records=MAX_RECORDS) or tuple(recorded)[-1:]
    return RecordedSteps(
        numbers=numbers,
        recorded_ns=tuple(recorded[number] for number in numbers),
        moves=_moves(analysis, numbers),
    )


def what_if(analysis: Analysis, changes: Sequence[Change]) -> Prediction:
    """Replay the steps with all changes together."""
    steps = recorded_steps(analysis)
    if steps is None:
        return Prediction(changes=tuple(changes), reason=why_no_step(analysis))
    factors = _factors(changes)
    replayed, changed = replay(steps.moves, Factors({})), replay(steps.moves, Factors(factors))
    lower_bound = replay(steps.moves, Factors(factors, unmeasured=0.0))
    if replayed is None or changed is None or lower_bound is None:
        return Prediction(changes=tuple(changes), reason=NO_ORDER)
    return Prediction(
        changes=tuple(changes),
        steps=steps.numbers,
        recorded_ns=steps.recorded_ns,
        replayed_ns=replayed,
        changed_ns=changed,
        lower_bound_ns=lower_bound,
    )


def why_no_step(analysis: Analysis) -> str:
    """Reason why no step can be replayed."""
    path = analysis.critical_path
    return "it has no counted step" if path is None or path.reason is None else path.reason


def _factors(changes: Sequence[Change]) -> dict[tuple[int | None, str], float]:
    """Factor for each (rank, term): the product if several changes name it."""
    factors: dict[tuple[int | None, str], float] = {}
    for change in changes:
        for term in change.terms:
            factors[change.rank, term] = factors.get((change.rank, term), 1.0) * change.factor
    return factors


def _moves(analysis: Analysis, numbers: tuple[int, ...]) -> dict[int, Moves]:
    """Moves of all ranks that completed steps. The threads are sliced again because an analysis keeps no slices."""
    context = analysis.context
    streams = context.on_streams
    step_moves = StepMoves.of(context, numbers)
    moves = {}
    for rank in (rank for rank in context.measured.ranks if rank.steps):
        pieces, split = context.slices(rank)
        released = releases(rank, pieces, split, instances=streams.instances, wire=streams.transfers, last=streams.last)
        moves[rank.rank] = step_moves.rank_moves(rank, pieces, split, released)
    return moves
