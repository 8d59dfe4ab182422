"""A case run for real, recorded and analysed; again where the machine was disturbed meanwhile."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import traincope
from tests.distributed.pool import Pool
from tests.truth.cases import STEPS, Case, Shares, step_seconds, truth
from tests.truth.lateness import DISTURBED, Sleeper
from tests.truth.sleeping import train
from traincope.analysis import Analysis
from traincope.events import SEND_OPERATIONS

ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was recorded of a case, and what a sleeper beside it saw of the machine."""

    case: Case
    analysis: Analysis
    waited_seconds: list[list[float]]
    """Of each rank in each step, in its rings, by its own watch."""
    late_ratio: float
    """Share of its ticks after which the sleeper woke late."""

    @property
    def shares(self) -> Shares:
        """In the median one of the counted steps."""
        return Shares(
            schedule=self._share("bubble.schedule"),
            imbalance=self._share("bubble.imbalance"),
            transfer=self._share("exposed_transfer[pp]"),
            jitter=self._share("bubble.jitter"),
        )

    @property
    def ring(self) -> tuple[float, float]:
        """What the ranks waited in their rings by their own watches, and what was recorded on axis cp."""
        waited = np.median(np.mean(self.waited_seconds, axis=0)[1:])
        return float(waited) / step_seconds(self.case), self._share("exposed_wait[cp]", "exposed_transfer[cp]")

    @property
    def sent(self) -> dict[str, float]:
        """Axis -> messages of all ranks in one step."""
        return {row.axis: row.count / (STEPS - 1) for row in self.analysis.comm if row.operation in SEND_OPERATIONS}

    @property
    def added(self) -> float:
        """How much longer the steps took than their actions, as a share."""
        assert self.analysis.median_step_ns is not None
        return self.analysis.median_step_ns / 1e9 / step_seconds(self.case) - 1

    @property
    def fraction(self) -> float:
        """The bubble as reports head it, jitter and all, as a share of the steps as long as they were."""
        assert self.analysis.bubble is not None
        return self.analysis.bubble.fraction_ratio

    @property
    def known_fraction(self) -> tuple[float, float]:
        """What it must lie between: what was added to the step was idled away in the pipeline not at all, or wholly."""
        known, added = truth(self.case), max(self.added, 0.0)
        idle = known.both + known.jitter
        return idle / (1 + added), (idle + added) / (1 + added)

    @property
    def beyond_known(self) -> float:
        """By how much the jitter is less than what is known of it, or more than that and all that was added."""
        known, found = truth(self.case).jitter, self.shares.jitter
        return min(found - known, 0.0) + max(found - known - max(self.added, 0.0), 0.0)

    def _share(self, *terms: str) -> float:
        """Mean over the ranks of each step, median over the steps; 0 where there is no such term."""
        ledger = self.analysis.ledger
        known = [term for term in terms if term in ledger.order]
        ns = [sum((rank.terms[term][rank.counted] for term in known), np.zeros(STEPS - 1)) for rank in ledger.ranks]
        return float(np.median(np.mean(ns, axis=0))) / (step_seconds(self.case) * 1e9)


def measure(pool: Pool, case: Case, directory: Path) -> Measurement:
    """Once if the machine was quiet; the quietest of three times if it never was. What was found decides nothing."""
    measurements: list[Measurement] = []
    while len(measurements) < ATTEMPTS and all(one.late_ratio > DISTURBED for one in measurements):
        measurements.append(_measure_once(pool, case, directory / str(len(measurements))))
    return min(measurements, key=lambda one: one.late_ratio)


def _measure_once(pool: Pool, case: Case, directory: Path) -> Measurement:
    with Sleeper() as sleeper:
        waited = pool.run(train, str(directory), case)
    analysis = traincope.analyze(traincope.open_run(directory))
    for rank in analysis.ledger.ranks:
        assert (sum(values for values in rank.terms.values() if values is not None) == rank.wall_ns).all()
    return Measurement(case=case, analysis=analysis, waited_seconds=waited, late_ratio=sleeper.late_ratio)
