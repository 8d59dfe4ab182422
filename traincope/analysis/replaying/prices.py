"""Gains of removed causes: the share of step time that the recorded steps take less without them.

A replay of the last steps gives the gain, as `--what-if` does. It is scaled by how much time the cause takes in all
counted steps. Steps with too many records are not replayed: then the time of the cause on the critical path is the most
that its removal can save. Without a path, the cause's share of step time is the estimate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from traincope.analysis.attribution.terms import exposed_wait
from traincope.analysis.confidence import MEDIUM, UNKNOWN
from traincope.analysis.critical_path import CriticalPath
from traincope.analysis.ledger.ledger import Ledger, RankLedger
from traincope.analysis.replaying.pipeline_change import Measured, balanced_ns, changed_ns, replayed_ns
from traincope.analysis.replaying.recorded import ReplayedSteps
from traincope.analysis.replaying.replay import Factors, replay
from traincope.arrays import Bools, Ints
from traincope.errors import UsageError
from traincope.plan.pipeline.orders import Shape

MAX_RECORDS = 30_000
"""Records of the last steps that are replayed for the verdict: a tenth of a second of computing."""
WAIT = exposed_wait("").removesuffix("]")
MIN_STEPS = 24
"""Fewest steps with detail that are evidence of a gain in a run that has steps without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Gain of one advice."""

    ratio: float
    """Share of step time."""
    at_most: bool = False
    """Only this bound is known."""
    confidence: str = MEDIUM
    """Confidence that the evidence of the gain allows."""


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices of a run's losses."""

    ledger: Ledger
    path: CriticalPath | None = None
    steps: ReplayedSteps | None = None
    """None: a step has too many records, or the timeline is a part of a run."""
    pipeline: Measured | None = None
    """The recorded pipeline, if its order can be changed."""

    def gain(self, removed: Factors, *, share: float, at_most: bool = False) -> Gain:
        """Price the removal of a cause.

        `share`: the cause's share of step time. `at_most`: the advice may remove less than the whole cause.
        """
        confidence = MEDIUM if self._shows_enough else UNKNOWN
        ratio = self.replayed(removed)
        if ratio is None:
            ratio, at_most = self._on_path(removed), True
        if ratio is None:
            ratio, at_most = share, False
        return Gain(ratio=ratio, at_most=at_most, confidence=confidence)

    def replayed(self, removed: Factors) -> float | None:
        """Gain by the replay; None if the steps cannot be replayed, or do not show the cause."""
        if self.steps is None or not self._replayed_ns or self.path is None or not self.path.steps:
            return None
        scale, changed = self._scale(removed, self.steps.numbers), replay(self.steps.moves, removed)
        if scale is None or changed is None:
            return None
        return min(max(scale * (1 - sum(changed) / self._replayed_ns), 0.0), 1.0)

    @cached_property
    def _replayed_ns(self) -> float:
        """Time of the steps without a change; 0 if they cannot be replayed."""
        replayed = None if self.steps is None else replay(self.steps.moves, Factors({}))
        return sum(replayed or ())

    def rescheduled(self, schedule: str, shape: Shape) -> float | None:
        """Gain of another schedule or size of the pipeline; None if the recorded actions do not show it."""
        if self.pipeline is None:
            return None
        try:
            return self._of_pipeline(self.pipeline, changed_ns(self.pipeline, schedule=schedule, shape=shape)[0])
        except UsageError:
            return None

    def balanced(self) -> float | None:
        """Gain of stages with equal work; None if the recorded actions do not show it."""
        return None if self.pipeline is None else self._of_pipeline(self.pipeline, balanced_ns(self.pipeline))

    def _of_pipeline(self, pipeline: Measured, ns: int) -> float | None:
        steps = () if self.path is None else self.path.steps
        if not steps:
            return None
        return max(replayed_ns(pipeline) - ns, 0) / median(step.wall_ns for step in steps)

    def _on_path(self, removed: Factors) -> float | None:
        """The cause's share of the critical path; None if it cannot be on it, as a wait."""
        if self.path is None or not self.path.steps or any(term.startswith(WAIT) for term in removed.terms):
            return None
        scale = self._scale(removed, [step.number for step in self.path.steps])
        ns = sum(ns * (1 - removed.term(rank, term)) for (rank, term), ns in self._path_ns.items())
        return None if scale is None else min(scale * ns / self.path.wall_ns, 1.0)

    @cached_property
    def _path_ns(self) -> Mapping[tuple[int, str], int]:
        return {} if self.path is None else self.path.shares()

    def _scale(self, removed: Factors, numbers: Sequence[int]) -> float | None:
        """The removed share of the time of all steps, relative to that of these steps; None if these have none."""
        chosen = np.array(numbers, dtype=np.int64)
        inside = self._removed_share(removed, lambda rank: rank.counted & np.isin(rank.numbers, chosen))
        if inside <= 0:
            return None
        return self._removed_share(removed, lambda rank: rank.counted) / inside

    def _removed_share(self, removed: Factors, chosen: Callable[[RankLedger], Bools]) -> float:
        """Share of the ranks' time in the chosen steps that the change removes."""
        ns, wall_ns = 0.0, 0.0
        for rank in self.ledger.ranks:
            steps = chosen(rank)
            wall_ns += float(rank.wall_ns[steps].sum())
            for term in removed.terms:
                values = rank.terms.get(term)
                if values is not None:
                    ns += _removed_ns(removed, rank.rank, term, values[steps], rank.numbers[steps])
        return ns / wall_ns if wall_ns else 0.0

    @property
    def _shows_enough(self) -> bool:
        """True if the counted steps are all steps, or enough to stand for them."""
        return not self.ledger.is_thinned or max(rank.num_counted for rank in self.ledger.ranks) >= MIN_STEPS


def _removed_ns(removed: Factors, rank: int, term: str, ns: Ints, numbers: Ints) -> float:
    """Time that the change removes from a term of a rank. `ns` and `numbers`: one entry per step."""
    in_steps = removed.by_step.get((rank, term))
    left = np.full(len(ns), removed.term(rank, term))
    if in_steps is not None:
        left *= [in_steps.get(number, 1.0) for number in numbers.tolist()]
    return float(((1 - left) * ns).sum())
