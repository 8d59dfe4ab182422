"""Two runs of what should be the same: is the second slower, which ledger term moved, and what else differs.

What is compared is a step where both runs do the same work in it on as many ranks, the ranks' time for a token where
they do not but tell their tokens, and else only the shares of a step: then neither is called slower. Terms are means
over the ranks; on the critical path a rank that is slow shows whole, in what it does, and not in who waits for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from traincope.analysis.analyze import Analysis
from traincope.analysis.diff_series import Floats, StepSeries, step_series, tokens_per_step
from traincope.analysis.diff_settings import Difference, differences
from traincope.analysis.diff_significance import (
    FEWEST_BLOCKS,
    Significance,
    block_length,
    blocks,
    compare,
    location,
)
from traincope.analysis.findings import Finding, FindingKind

LEVEL = 0.01
"""Of so many pairs of runs that are alike one is told apart."""
LEAST = 0.02
"""Share of a step from which a change is one to act on."""
SAME_WORK = 0.01
"""FLOPs a token may differ by so much: they are counted."""


class Basis(StrEnum):
    """What is compared; the value is what JSON says."""

    STEP = "step"
    """Ns of a step."""
    TOKEN = "rank-time per token"
    """Ns of a step, times ranks, over tokens."""
    SHARE = "share of a step"


class Judgement(StrEnum):
    """The value is what JSON says."""

    SLOWER = "slower"
    FASTER = "faster"
    SMALL = "small"
    """They differ, but by less than what was asked for."""
    NO_EVIDENCE = "no evidence"
    """They differ no more than steps of one run do."""
    TOO_FEW = "too few steps"
    OTHER_WORK = "other work"
    """Their steps cannot be compared, only the shares of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What a term took in either run, in the unit of the basis."""

    term: str
    before: float
    after: float
    p: float | None
    """Of so large a change by chance, all terms considered; None: too few steps."""
    path_change: float | None
    """Of its time on the critical path; None where one of the runs has none."""
    rank: int | None
    """In which it changed most, where the runs have the same ranks."""
    rank_change: float | None

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def evident(self) -> bool:
        return self.p is not None and self.p <= LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The second run against the first."""

    before: Analysis
    after: Analysis
    judgement: Judgement
    basis: Basis
    reason: str | None
    """Why it is not steps that are compared."""
    step: Moved
    """All terms together; of the basis SHARE it is 1 in both."""
    interval: tuple[float, float] | None
    """95 % of the step's change."""
    terms: tuple[Moved, ...]
    """In the order of the ledger, of both runs."""
    unseen: tuple[str, ...]
    """Terms that one of the runs cannot see: in neither's numbers but in unattributed."""
    num_steps: tuple[int, int]
    block_steps: int
    """Steps that are compared as one, for they depend on each other."""
    num_blocks: tuple[int, int]
    least_ratio: float
    settings: tuple[Difference, ...]
    new_findings: tuple[Finding, ...]
    """Of the second run's verdict, what the first's does not say of the same ranks."""

    @property
    def change_ratio(self) -> float:
        """Of the step."""
        return self.step.change / self.step.before if self.step.before else 0.0

    @property
    def movers(self) -> tuple[Moved, ...]:
        """The terms for whose change there is evidence, the largest first."""
        return tuple(sorted((term for term in self.terms if term.evident), key=lambda term: -abs(term.change)))


def diff(before: Analysis, after: Analysis, *, least_ratio: float = LEAST) -> Diff:
    """Both must have counted steps that all their ranks completed."""
    basis, reason = _basis(before, after)
    pair = _Pair.of(before, after, basis=basis)
    tested = pair.tested()
    step, *terms = pair.moved(tested)
    return Diff(
        before=before,
        after=after,
        judgement=_judgement(basis, tested, least_ratio),
        basis=basis,
        reason=reason,
        step=step,
        interval=None if tested is None or basis is Basis.SHARE else tested.interval,
        terms=tuple(terms),
        unseen=pair.unseen,
        num_steps=(len(pair.series[0]), len(pair.series[1])),
        block_steps=pair.block_steps,
        num_blocks=(len(pair.blocks[0]), len(pair.blocks[1])),
        least_ratio=least_ratio,
        settings=differences(before.timeline, after.timeline),
        new_findings=_new_findings(before, after),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Both runs' steps, in the unit of the basis."""

    series: tuple[StepSeries, StepSeries]
    terms: tuple[str, ...]
    """Of either, in ledger order, that both can see."""
    unseen: tuple[str, ...]
    block_steps: int

    @classmethod
    def of(cls, before: Analysis, after: Analysis, *, basis: Basis) -> "_Pair":
        first, second = step_series(before), step_series(after)
        names = tuple(dict.fromkeys((*before.ledger.order, *after.ledger.order)))
        return cls(
            series=(_scaled(first, _factor(before, basis)), _scaled(second, _factor(after, basis))),
            terms=tuple(name for name in names if name not in first.unseen | second.unseen),
            unseen=tuple(name for name in names if name in first.unseen ^ second.unseen),
            block_steps=block_length([first.wall_ns, second.wall_ns]),
        )

    @property
    def blocks(self) -> tuple[Floats, Floats]:
        """(blocks, step and terms) of either."""
        return self._cut(0, self.block_steps), self._cut(1, self.block_steps)

    def _cut(self, which: int, length: int) -> Floats:
        series = self.series[which]
        none = np.zeros(len(series))
        columns = [series.wall_ns, *(series.terms.get(term, none) for term in self.terms)]
        return blocks(np.stack(columns, axis=1), length)

    def tested(self) -> Significance | None:
        """None: too few blocks."""
        before, after = self.blocks
        return compare(before, after) if min(len(before), len(after)) >= FEWEST_BLOCKS else None

    def moved(self, tested: Significance | None) -> Iterator[Moved]:
        """The step, then its terms."""
        taken = [location(self._cut(at, min(self.block_steps, len(self.series[at])))).tolist() for at in (0, 1)]
        p = [None] * (len(self.terms) + 1) if tested is None else tested.p.tolist()
        for at, name in enumerate(("step", *self.terms)):
            yield _moved(name, self.series, taken=(taken[0][at], taken[1][at]), p=p[at])


def _basis(before: Analysis, after: Analysis) -> tuple[Basis, str | None]:
    first, second = before.timeline.run.info, after.timeline.run.info
    tokens = tokens_per_step(before), tokens_per_step(after)
    if not _same_model(before, after, tokens):
        return Basis.SHARE, "a token takes other FLOPs in the second run, which trains another model"
    if tokens[0] is not None and tokens[1] is not None:
        if tokens[0] == tokens[1] and first.world_size == second.world_size:
            return Basis.STEP, None
        what = "tokens" if tokens[0] != tokens[1] else "ranks"
        return Basis.TOKEN, f"a step has other {what}"
    if first.world_size == second.world_size and first.mesh == second.mesh:
        return Basis.STEP, None
    return Basis.SHARE, "the layouts differ and not both tell the tokens of a step: run.describe(tokens_per_step=...)"


def _same_model(before: Analysis, after: Analysis, tokens: tuple[float | None, float | None]) -> bool:
    """As far as both tell their FLOPs."""
    first, second = before.utilization.work.model, after.utilization.work.model
    if first is None or second is None or tokens[0] is None or tokens[1] is None:
        return True
    per_token = first / tokens[0], second / tokens[1]
    return abs(per_token[1] - per_token[0]) <= SAME_WORK * per_token[0]


def _factor(analysis: Analysis, basis: Basis) -> float:
    tokens = tokens_per_step(analysis)
    if basis is Basis.TOKEN and tokens is not None:
        return analysis.timeline.run.info.world_size / tokens
    return 1.0 if basis is Basis.STEP else 0.0


def _scaled(series: StepSeries, factor: float) -> StepSeries:
    """Times the factor; with none, as shares of each step."""
    each = np.full(len(series), factor) if factor else 1 / np.maximum(series.wall_ns, 1.0)

    def scale(terms: Mapping[str, Floats]) -> dict[str, Floats]:
        return {term: values * each for term, values in terms.items()}

    return StepSeries(
        numbers=series.numbers,
        wall_ns=series.wall_ns * each,
        terms=scale(series.terms),
        path=scale(series.path),
        rank_terms={rank: scale(terms) for rank, terms in series.rank_terms.items()},
        unseen=series.unseen,
    )


def _moved(name: str, series: tuple[StepSeries, StepSeries], *, taken: tuple[float, float], p: float | None) -> Moved:
    rank, rank_change = _most_changed(name, series)
    return Moved(
        term=name,
        before=taken[0],
        after=taken[1],
        p=p,
        path_change=_path_change(name, series),
        rank=rank,
        rank_change=rank_change,
    )


def _path_change(name: str, series: tuple[StepSeries, StepSeries]) -> float | None:
    """Of all terms together it is the path's whole length."""
    if not all(one.path for one in series):
        return None
    before, after = (
        sum(one.path.values()) if name == "step" else one.path.get(name, np.zeros(len(one))) for one in series
    )
    return _typical(np.asarray(after)) - _typical(np.asarray(before))


def _most_changed(name: str, series: tuple[StepSeries, StepSeries]) -> tuple[int | None, float | None]:
    """The rank whose own term changed most."""
    first, second = (one.rank_terms for one in series)
    if first.keys() != second.keys() or name == "step" or len(first) < 2:
        return None, None
    changes = {rank: _own(second[rank], name) - _own(first[rank], name) for rank in first}
    most = max(changes, key=lambda rank: abs(changes[rank]))
    return most, changes[most]


def _own(terms: Mapping[str, Floats], name: str) -> float:
    return _typical(terms[name]) if name in terms else 0.0


def _typical(values: Floats) -> float:
    return float(location(values[:, None])[0])


def _judgement(basis: Basis, tested: Significance | None, least_ratio: float) -> Judgement:
    if basis is Basis.SHARE:
        return Judgement.OTHER_WORK
    if tested is None:
        return Judgement.TOO_FEW
    if tested.p[0] > LEVEL:
        return Judgement.NO_EVIDENCE
    change = float(tested.change[0])
    if abs(change) < least_ratio * float(tested.before[0]):
        return Judgement.SMALL
    return Judgement.SLOWER if change > 0 else Judgement.FASTER


def _new_findings(before: Analysis, after: Analysis) -> tuple[Finding, ...]:
    said = {(finding.kind, finding.ranks) for finding in before.verdict} | {(FindingKind.HEALTHY, ())}
    return tuple(finding for finding in after.verdict if (finding.kind, finding.ranks) not in said)
