"""Compare two runs of the same training: is the second slower, which ledger term changed, and which settings differ.

The basis is a step if both runs do the same work per step on as many ranks. Otherwise it is the ranks' time per token
if both runs give their tokens. Otherwise only shares of a step are compared, and neither run is called slower. Terms
are means over the ranks. On the critical path a slow rank shows in what it does, not in the ranks that wait for it.

The lengths of all steps are compared, and the terms of the counted ones: steps without detail have no terms.

The judgement rests on the step alone, at LEVEL. With many terms, the chance that any of them changes by luck must be no
larger than with one, so their p are corrected for their number (`significance.adjusted`).
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from traincope.analysis.analyze import Analysis
from traincope.analysis.diff.series import StepSeries, step_lengths, step_series, tokens_per_step
from traincope.analysis.diff.settings import Difference, differences
from traincope.analysis.diff.significance import LEVEL, Comparison, adjusted, compare, location
from traincope.analysis.verdict.findings import Finding, FindingKind
from traincope.arrays import Floats
from traincope.errors import EmptyRunError
from traincope.timeline import LedgerClock

DEFAULT_THRESHOLD_RATIO = 0.02
"""Share of a step from which a change is worth acting on."""
STEP = "step"
"""Name of all terms together."""
Series = tuple[StepSeries, StepSeries]
"""Series of both runs."""
SAME_WORK = 0.01
"""FLOPs per token may differ by this share: they are counted."""


class Basis(StrEnum):
    """Unit of comparison; the value is its name in JSON."""

    STEP = "step"
    """Ns per step."""
    TOKEN = "rank-time per token"
    """Ns per step, times ranks, over tokens."""
    SHARE = "share of a step"


class Clock(StrEnum):
    """Kind of clock that measured the terms of a run; the value is its name in JSON."""

    HOST = "host"
    MARKS = "marks on the GPUs' streams"
    TRACES = "kernel traces"


def clock_of(analysis: Analysis) -> Clock:
    """Return what measured the terms of a run."""
    if analysis.ledger.clock is LedgerClock.HOST:
        return Clock.HOST
    return Clock.TRACES if analysis.timeline.run.info.imported else Clock.MARKS


class Judgement(StrEnum):
    """Result of the comparison; the value is its name in JSON."""

    SLOWER = "slower"
    FASTER = "faster"
    SMALL = "small"
    """The runs differ, but by less than the requested share."""
    NO_EVIDENCE = "no evidence"
    """The runs differ no more than steps of one run do."""
    NOT_TESTED = "not tested"
    """Too few steps, or steps that depend on each other for too long."""
    OTHER_WORK = "other work"
    """The runs do different work per step; only shares are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermChange:
    """Time of a term in both runs, in the unit of the basis."""

    term: str
    before: float
    after: float
    steps: tuple[int, int]
    """Number of steps of each run that it stands on."""
    p: float | None
    """Probability of so large a change by chance; of a term, over all terms. None: not tested."""
    steps_needed: int | None
    """About as many steps of each run would be tested; None: tested."""
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
    """95 % interval of the step's change; None: not tested, or only shares are compared."""
    terms: tuple[TermChange, ...]
    """Terms of both runs, in the order of the ledger."""
    unseen: tuple[str, ...]
    """Terms that one of the runs does not measure. Their time is in unattributed. Empty if other clocks measured."""
    num_steps: tuple[int, int]
    sampled_steps: tuple[int, int] | None
    """Number of steps behind the terms; None: the same as behind the step."""
    threshold_ratio: float
    settings: tuple[Difference, ...]
    new_findings: tuple[Finding, ...]
    """Findings of the second run's verdict that the first run's verdict does not have for the same ranks."""

    @property
    def change_ratio(self) -> float:
        """Change of the step over its first value."""
        return self.step.change / self.step.before if self.step.before else 0.0

    @property
    def clocks(self) -> tuple[Clock, Clock]:
        """Kinds of clock that measured the terms of the two runs."""
        return clock_of(self.before), clock_of(self.after)

    @property
    def movers(self) -> tuple[TermChange, ...]:
        """Terms with evidence of a change, the largest change first."""
        return tuple(sorted((term for term in self.terms if term.evident), key=lambda term: -abs(term.change)))


def require_steps(analysis: Analysis) -> Analysis:
    """Return the analysis. Raises EmptyRunError if no step of it can be compared."""
    if not len(step_series(analysis)):
        run = analysis.timeline.run
        remedy = "trace whole steps and import them" if run.info.imported else "let it run longer"
        raise EmptyRunError(f"{run.path} has no counted step that all ranks completed; {remedy}")
    return analysis


def diff(before: Analysis, after: Analysis, *, threshold_ratio: float = DEFAULT_THRESHOLD_RATIO) -> Diff:
    """Compare two runs. Both need counted steps that all their ranks completed."""
    basis, reason = _basis(before, after)
    order, unseen = _terms(before, after)
    lengths, series = _lengths(before, after, basis), _series(before, after, basis)
    num_steps, sampled_steps = (len(lengths[0]), len(lengths[1])), (len(series[0]), len(series[1]))
    whole = compare(*lengths)
    tested = [compare(_term(series[0], name), _term(series[1], name)) for name in order]
    corrected = adjusted([comparison.p for comparison in tested])
    terms = (
        _change(name, comparison, series, steps=sampled_steps, p=p)
        for name, comparison, p in zip(order, tested, corrected, strict=True)
    )
    return Diff(
        before=before,
        after=after,
        judgement=_judgement(basis, whole, threshold_ratio),
        basis=basis,
        reason=reason,
        step=_change(STEP, whole, series, steps=num_steps, p=whole.p),
        interval=None if basis is Basis.SHARE else whole.interval,
        terms=tuple(terms),
        unseen=unseen,
        num_steps=num_steps,
        sampled_steps=None if sampled_steps == num_steps else sampled_steps,
        threshold_ratio=threshold_ratio,
        settings=differences(before.timeline, after.timeline),
        new_findings=_new_findings(before, after),
    )


def _lengths(before: Analysis, after: Analysis, basis: Basis) -> tuple[Floats, Floats]:
    """Return the lengths of all steps of both runs in the unit of the basis."""
    first, second = (step_lengths(run) * _factor(run, basis) for run in (before, after))
    return (np.ones_like(first), np.ones_like(second)) if basis is Basis.SHARE else (first, second)


def _series(before: Analysis, after: Analysis, basis: Basis) -> Series:
    """Return the series of both runs in the unit of the basis."""
    first, second = (_scaled(step_series(run), _factor(run, basis)) for run in (before, after))
    return first, second


def _change(
    name: str, comparison: Comparison, series: Series, *, steps: tuple[int, int], p: float | None
) -> TermChange:
    """Change of the step or a term. `p` is corrected for the number of tests."""
    rank, rank_change = _most_changed(name, series)
    return TermChange(
        term=name,
        before=comparison.before,
        after=comparison.after,
        steps=steps,
        p=p,
        steps_needed=comparison.entries_needed,
        path_change=_path_change(name, series),
        rank=rank,
        rank_change=rank_change,
    )


def _term(series: StepSeries, name: str) -> Floats:
    """Series of a term; 0 in a run without it."""
    return series.terms.get(name, np.zeros(len(series)))


def _terms(before: Analysis, after: Analysis) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the terms of either run that both measure, and those that only one measures, in ledger order.

    Terms that other clocks measured are other quantities: of those, none is compared.
    """
    if clock_of(before) is not clock_of(after):
        return (), ()
    unseen = step_series(before).unseen, step_series(after).unseen
    names = tuple(dict.fromkeys((*before.ledger.order, *after.ledger.order)))
    both = tuple(name for name in names if name not in unseen[0] | unseen[1])
    return both, tuple(name for name in names if name in unseen[0] ^ unseen[1])


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
    return series.mapped(lambda values: values * each)


def _path_change(name: str, series: tuple[StepSeries, StepSeries]) -> float | None:
    """Change on the critical path; for the step, of the path's length."""
    if not all(run_series.path for run_series in series):
        return None
    before, after = (
        _typical(sum(run_series.path.values()) if name == STEP else run_series.path.get(name)) for run_series in series
    )
    return after - before


def _most_changed(name: str, series: tuple[StepSeries, StepSeries]) -> tuple[int | None, float | None]:
    """The rank whose own term changed most."""
    first, second = series
    if first.rank_terms.keys() != second.rank_terms.keys() or name == STEP or len(first.rank_terms) < 2:
        return None, None
    changes = {
        rank: _typical(second.rank_terms[rank].get(name)) - _typical(terms.get(name))
        for rank, terms in first.rank_terms.items()
    }
    changed = max(changes, key=lambda rank: abs(changes[rank]))
    return changed, changes[changed]


def _typical(values: Floats | int | None) -> float:
    """Typical value of one of the series; 0 without it."""
    return 0.0 if values is None or isinstance(values, int) else location(values)


def _judgement(basis: Basis, step: Comparison, threshold_ratio: float) -> Judgement:
    if basis is Basis.SHARE:
        return Judgement.OTHER_WORK
    if step.p is None:
        return Judgement.NOT_TESTED
    if step.p > LEVEL:
        return Judgement.NO_EVIDENCE
    if abs(step.change) < threshold_ratio * step.before:
        return Judgement.SMALL
    return Judgement.SLOWER if step.change > 0 else Judgement.FASTER


def _new_findings(before: Analysis, after: Analysis) -> tuple[Finding, ...]:
    known = {(finding.kind, finding.ranks) for finding in before.verdict} | {(FindingKind.HEALTHY, ())}
    return tuple(finding for finding in after.verdict if (finding.kind, finding.ranks) not in known)
