"""What one run took, step by step: the mean over its ranks of every ledger term, and the critical path's."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincope.analysis.amounts import TOKENS, mean_amount
from traincope.analysis.analyze import Analysis
from traincope.analysis.pipeline import by_number
from traincope.analysis.terms import EVALUATION
from traincope.analysis.told import positive

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries:
    """Of the counted steps that all ranks completed; all arrays have one entry a step, ns."""

    numbers: NDArray[np.int64]
    wall_ns: Floats
    terms: Mapping[str, Floats]
    """What the run's source can see; their sum is wall_ns."""
    path: Mapping[str, Floats]
    """Ledger term -> time on the critical path. Empty where there is none."""
    rank_terms: Mapping[int, Mapping[str, Floats]]
    """Rank -> its own terms."""
    unseen: frozenset[str]
    """Terms that the source cannot see."""

    def __len__(self) -> int:
        return len(self.numbers)


def step_series(analysis: Analysis) -> StepSeries:
    ledger = analysis.ledger
    counted = [set(rank.numbers[rank.counted].tolist()) for rank in ledger.ranks if rank.num_counted]
    numbers = np.array(sorted(set.intersection(*counted)) if counted else [], dtype=np.int64)
    ranks = [rank for rank in ledger.ranks if rank.num_counted]
    own = {
        rank.rank: {
            term: by_number(numbers, rank.numbers, ns, missing=0).astype(float)
            for term, ns in rank.terms.items()
            if ns is not None
        }
        for rank in ranks
    }
    walls = [by_number(numbers, rank.numbers, rank.wall_ns, missing=0) for rank in ranks]
    seen = [term for term in ledger.order if own and all(term in of for of in own.values())]
    return StepSeries(
        numbers=numbers,
        wall_ns=np.mean(walls, axis=0) if walls else np.empty(0),
        terms={term: np.mean([of[term] for of in own.values()], axis=0) for term in seen},
        path=_path(analysis, numbers),
        rank_terms=own,
        unseen=frozenset(ledger.order) - frozenset(seen),
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
    """Of the whole job, as it logged them or told; None where it did neither."""
    steps = {step for rank in analysis.ledger.ranks for step in rank.numbers[rank.counted].tolist()}
    logged = mean_amount(analysis.timeline, TOKENS, steps=steps)
    return logged or positive(analysis.timeline.run.info.settings.get("tokens_per_step"))
