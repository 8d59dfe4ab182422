"""Compare two runs of the same training: is the second slower, which ledger term changed, and which settings differ.

The basis is a step if both runs do the same work per step on as many ranks. Otherwise it is the ranks' time per token
if both runs give their tokens. Otherwise only shares of a step are compared, and neither run is called slower. Terms
are means over the ranks. On the critical path a slow rank shows in what it does, not in the ranks that wait for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from traincope.analysis.analyze import Analysis
from traincope.analysis.diff.series import StepSeries, step_series, tokens_per_step
from traincope.analysis.diff.settings import Difference, differences
from traincope.analysis.diff.significance import (
    MIN_BLOCKS,
    Significance,
    block_length,
    blocks,
    compare,
    location,
)
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.arrays import Floats

LEVEL = 0.01
"""Share of pairs of equal runs that the test wrongly calls different."""
DEFAULT_THRESHOLD_RATIO = 0.02
"""Share of a step from which a change is worth acting on."""
SAME_WORK = 0.01
"""FLOPs per token may differ by this share: they are counted."""


class Basis(StrEnum):
    """Unit of comparison; the value is its name in JSON."""

    STEP = "step"
    """Ns per step."""
    TOKEN = "rank-time per token"
    """Ns per step, times ranks, over tokens."""
    SHARE = "share of a step"


class Judgement(StrEnum):
    """Result of the comparison; the value is its name in JSON."""

    SLOWER = "slower"
    FASTER = "faster"
    SMALL = "small"
    """The runs differ, but by less than the requested share."""
    NO_EVIDENCE = "no evidence"
    """The runs differ no more than steps of one run do."""
    TOO_FEW = "too few steps"
    OTHER_WORK = "other work"
    """The runs do different work per step; only shares are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermChange:
    """Time of a term in both runs, in the unit of the basis."""

    term: str
    before: float
    after: float
    p: float | None
    """Probability of so large a change by chance, over all terms; None: too few steps."""
    path_change: float | None
    """Change of its time on the critical path; None if one of the runs has none."""
    rank: int | None
    """Rank that changed most, if the runs have the same ranks."""
    rank_change: float | None

    @property
    def change(self) -> float:
        return self.after - self.before

    @property
    def evident(self) -> bool:
        return self.p is not None and self.p <= LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """Comparison of the second run with the first."""

    before: Analysis
    after: Analysis
    judgement: Judgement
    basis: Basis
    reason: str | None
    """Reason why the basis is not a step."""
    step: TermChange
    """All terms together; with the basis SHARE it is 1 in both."""
    interval: tuple[float, float] | None
    """95 % interval of the step's change."""
    terms: tuple[TermChange, ...]
    """Terms of both runs, in the order of the ledger."""
    unseen: tuple[str, ...]
    """Terms that one of the runs does not measure. Their time is in unattributed."""
    num_steps: tuple[int, int]
    block_steps: int
    """Consecutive steps that are compared as one block, because they depend on each other."""
    num_blocks: tuple[int, int]
    threshold_ratio: float
    settings: tuple[Difference, ...]
    new_findings: tuple[Finding, ...]
    """Findings of the second run's verdict that the first run's verdict does not have for the same ranks."""

    @property
    def change_ratio(self) -> float:
        """Change of the step over its first value."""
        return self.step.change / self.step.before if self.step.before else 0.0

    @property
    def movers(self) -> tuple[TermChange, ...]:
        """Terms with evidence of a change, the largest change first."""
        return tuple(sorted((term for term in self.terms if term.evident), key=lambda term: -abs(term.change)))


def diff(before: Analysis, after: Analysis, *, threshold_ratio: float = DEFAULT_THRESHOLD_RATIO) -> Diff:
    """Compare two runs. Both need counted steps that all their ranks completed."""
    basis, reason = _basis(before, after)
    pair = _Pair.of(before, after, basis=basis)
    significance = pair.significance()
    step, *terms = pair.changes(significance)
    return Diff(
        before=before,
        after=after,
        judgement=_judgement(basis, significance, threshold_ratio),
        basis=basis,
        reason=reason,
        step=step,
        interval=None if significance is None or basis is Basis.SHARE else significance.interval,
        terms=tuple(terms),
        unseen=pair.unseen,
        num_steps=(len(pair.series[0]), len(pair.series[1])),
        block_steps=pair.block_steps,
        num_blocks=(len(pair.blocks[0]), len(pair.blocks[1])),
        threshold_ratio=threshold_ratio,
        settings=differences(before.timeline, after.timeline),
        new_findings=_new_findings(before, after),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Steps of both runs in the unit of the basis."""

    series: tuple[StepSeries, StepSeries]
    terms: tuple[str, ...]
    """Terms of either run that both measure, in ledger order."""
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
        """(blocks, step and terms) of each run."""
        return self._blocks(0, self.block_steps), self._blocks(1, self.block_steps)

    def _blocks(self, which: int, length: int) -> Floats:
        series = self.series[which]
        none = np.zeros(len(series))
        columns = [series.wall_ns, *(series.terms.get(term, none) for term in self.terms)]
        return blocks(np.stack(columns, axis=1), length)

    def significance(self) -> Significance | None:
        """Test the difference; None: too few blocks."""
        before, after = self.blocks
        return compare(before, after) if min(len(before), len(after)) >= MIN_BLOCKS else None

    def changes(self, significance: Significance | None) -> Iterator[TermChange]:
        """Change of the step, then of each term."""
        taken = [location(self._blocks(at, min(self.block_steps, len(self.series[at])))).tolist() for at in (0, 1)]
        p = [None] * (len(self.terms) + 1) if significance is None else significance.p.tolist()
        for at, name in enumerate(("step", *self.terms)):
            yield _term_change(name, self.series, taken=(taken[0][at], taken[1][at]), p=p[at])


def _basis(before: Analysis, after: Analysis) -> tuple[Basis, str | None]:
    first, second = before.timeline.run.info, after.timeline.run.info
    tokens = tokens_per_step(before), tokens_per_step(after)
    if not _same_model(before, after, tokens):
        return Basis.SHARE, "the runs train different models: their FLOPs per token differ"
    if tokens[0] is not None and tokens[1] is not None:
        if tokens[0] == tokens[1] and first.world_size == second.world_size:
            return Basis.STEP, None
        differing = "the tokens per step differ" if tokens[0] != tokens[1] else "the numbers of ranks differ"
        return Basis.TOKEN, differing
    if first.world_size == second.world_size and first.mesh == second.mesh:
        return Basis.STEP, None
    return Basis.SHARE, "the layouts differ, and not both runs declare run.describe(tokens_per_step=...)"


def _same_model(before: Analysis, after: Analysis, tokens: tuple[float | None, float | None]) -> bool:
    """True if the FLOPs per token agree, or are unknown."""
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
    """Multiply by the factor; with factor 0, divide each step by its wall time."""
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


def _term_change(
    name: str, series: tuple[StepSeries, StepSeries], *, taken: tuple[float, float], p: float | None
) -> TermChange:
    rank, rank_change = _most_changed(name, series)
    return TermChange(
        term=name,
        before=taken[0],
        after=taken[1],
        p=p,
        path_change=_path_change(name, series),
        rank=rank,
        rank_change=rank_change,
    )


def _path_change(name: str, series: tuple[StepSeries, StepSeries]) -> float | None:
    """Change on the critical path; for the step, of the path's length."""
    if not all(run_series.path for run_series in series):
        return None
    before, after = (
        sum(run_series.path.values()) if name == "step" else run_series.path.get(name, np.zeros(len(run_series)))
        for run_series in series
    )
    return _typical(np.asarray(after)) - _typical(np.asarray(before))


def _most_changed(name: str, series: tuple[StepSeries, StepSeries]) -> tuple[int | None, float | None]:
    """The rank whose own term changed most."""
    first, second = (run_series.rank_terms for run_series in series)
    if first.keys() != second.keys() or name == "step" or len(first) < 2:
        return None, None
    changes = {rank: _typical_of(second[rank], name) - _typical_of(first[rank], name) for rank in first}
    changed = max(changes, key=lambda rank: abs(changes[rank]))
    return changed, changes[changed]


def _typical_of(terms: Mapping[str, Floats], name: str) -> float:
    return _typical(terms[name]) if name in terms else 0.0


def _typical(values: Floats) -> float:
    return float(location(values[:, None])[0])


def _judgement(basis: Basis, significance: Significance | None, threshold_ratio: float) -> Judgement:
    if basis is Basis.SHARE:
        return Judgement.OTHER_WORK
    if significance is None:
        return Judgement.TOO_FEW
    if significance.p[0] > LEVEL:
        return Judgement.NO_EVIDENCE
    change = float(significance.change[0])
    if abs(change) < threshold_ratio * float(significance.before[0]):
        return Judgement.SMALL
    return Judgement.SLOWER if change > 0 else Judgement.FASTER


def _new_findings(before: Analysis, after: Analysis) -> tuple[Finding, ...]:
    known = {(finding.kind, finding.ranks) for finding in before.verdict} | {(FindingKind.HEALTHY, ())}
    return tuple(finding for finding in after.verdict if (finding.kind, finding.ranks) not in known)
