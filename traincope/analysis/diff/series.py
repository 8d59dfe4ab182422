"""Step series of one run: the mean over its ranks of every ledger term, and the critical path's time per term."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.analyze import Analysis
from traincope.analysis.attribution.terms import EVALUATION
from traincope.analysis.efficiency.declared_flops import TOKENS, mean_amount, positive
from traincope.analysis.ledger.ledger import RankLedger
from traincope.analysis.pipeline.replicas import by_number
from traincope.arrays import Bools, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries:
    """Series of steps that all ranks completed. All arrays have one entry per step, ns."""

    numbers: NDArray[np.int64]
    """Step numbers."""
    wall_ns: Floats
    terms: Mapping[str, Floats]
    """Terms that the run's source measures; they sum to wall_ns."""
    path: Mapping[str, Floats]
    """Ledger term -> time on the critical path. Empty without a path."""
    rank_terms: Mapping[int, Mapping[str, Floats]]
    """Rank -> its own terms."""
    unseen: frozenset[str]
    """Terms that the source does not measure."""

    def __len__(self) -> int:
        return len(self.numbers)

    def mapped(self, change: Callable[[Floats], Floats]) -> "StepSeries":
        """Change every series of times."""

        def each(terms: Mapping[str, Floats]) -> dict[str, Floats]:
            return {term: change(values) for term, values in terms.items()}

        return replace(
            self,
            wall_ns=change(self.wall_ns),
            terms=each(self.terms),
            path=each(self.path),
            rank_terms={rank: each(terms) for rank, terms in self.rank_terms.items()},
        )


def step_series(analysis: Analysis) -> StepSeries:
    """Series of the counted steps, which have detail."""
    return _series(analysis, lambda rank: rank.counted)


def step_lengths(analysis: Analysis) -> Floats:
    """Lengths of all steps, also of those without detail."""
    return _series(analysis, lambda rank: rank.timed).wall_ns


def _series(analysis: Analysis, chosen: Callable[[RankLedger], Bools]) -> StepSeries:
    ledger = analysis.ledger
    ranks = [rank for rank in ledger.ranks if rank.num_counted]
    steps = [set(rank.numbers[chosen(rank)].tolist()) for rank in ranks]
    numbers = np.array(sorted(set.intersection(*steps)) if steps else [], dtype=np.int64)
    by_rank = {
        rank.rank: {
            term: by_number(numbers, rank.numbers, ns, missing=0).astype(float)
            for term, ns in rank.terms.items()
            if ns is not None
        }
        for rank in ranks
    }
    walls = [by_number(numbers, rank.numbers, rank.wall_ns, missing=0) for rank in ranks]
    measured = [term for term in ledger.order if by_rank and all(term in rank_terms for rank_terms in by_rank.values())]
    return StepSeries(
        numbers=numbers,
        wall_ns=np.mean(walls, axis=0) if walls else np.empty(0),
        terms={term: np.mean([rank_terms[term] for rank_terms in by_rank.values()], axis=0) for term in measured},
        path=_path(analysis, numbers),
        rank_terms=by_rank,
        unseen=frozenset(ledger.order) - frozenset(measured),
    )


def _path(analysis: Analysis, numbers: NDArray[np.int64]) -> dict[str, Floats]:
    steps = () if analysis.critical_path is None else analysis.critical_path.steps
    at = {number: place for place, number in enumerate(numbers.tolist())}
    terms: dict[str, Floats] = {}
    for step in steps:
        for segment in step.segments:
            if step.number in at and segment.term != EVALUATION:
                sums = terms.setdefault(segment.term, np.zeros(len(numbers)))
                sums[at[step.number]] += segment.length_ns
    return terms


def tokens_per_step(analysis: Analysis) -> float | None:
    """Tokens of the whole job per step, as logged or declared; None if neither."""
    steps = {step for rank in analysis.ledger.ranks for step in rank.numbers[rank.counted].tolist()}
    logged = mean_amount(analysis.timeline, TOKENS, steps=steps)
    return logged or positive(analysis.timeline.run.info.settings.get("tokens_per_step"))
