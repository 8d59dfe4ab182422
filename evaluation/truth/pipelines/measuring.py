"""Measuring a case: run, record, analyse, and repeat if the machine was disturbed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

import traincope
from evaluation.truth.pipelines.cases import STEPS, UNIT_SECONDS, Case, Durations, Shares, step_seconds, truth
from evaluation.truth.pipelines.lateness import DISTURBED, Sleeper
from evaluation.truth.pipelines.sleeping import train
from tests.distributed.ranks.pool import Pool
from traincope.analysis import Analysis
from traincope.events import SEND_OPERATIONS

ATTEMPTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The record of a case, and the lateness that a background sleeper measured."""

    case: Case
    """With the durations of its actions in all counted steps, by the ranks' own clocks."""
    steps: tuple[Durations, ...]
    """The same durations of each counted step."""
    analysis: Analysis
    waited_seconds: list[list[float]]
    """Time of each rank in each step spent waiting in its rings, by its own clock."""
    late_ratio: float
    """Share of ticks after which the sleeper woke late."""

    @property
    def shares(self) -> Shares:
        """Shares of the median counted step."""
        return Shares(
            schedule=self._share("bubble.schedule"),
            imbalance=self._share("bubble.imbalance"),
            transfer=self._share("exposed_transfer[pp]"),
            jitter=self._share("bubble.jitter"),
        )

    @property
    def truth(self) -> Shares:
        """Shares of the median counted step that `shares` must show, of the same step's length."""
        steps = [replace(self.case, durations=each) for each in self.steps]
        known = np.array([[step_seconds(step) * share for share in astuple(truth(step))] for step in steps])
        return Shares(*np.median(known, axis=0) / step_seconds(self.case))

    @property
    def ring(self) -> tuple[float, float]:
        """Waits in the rings by the ranks' own clocks, and recorded waits on axis cp."""
        waited = np.median(np.mean(self.waited_seconds, axis=0)[1:])
        return float(waited) / step_seconds(self.case), self._share("exposed_wait[cp]", "exposed_transfer[cp]")

    @property
    def sent(self) -> dict[str, float]:
        """Axis -> messages of all ranks in one step."""
        return {row.axis: row.count / (STEPS - 1) for row in self.analysis.comm if row.operation in SEND_OPERATIONS}

    @property
    def added(self) -> float:
        """Additional step time beyond the actions, as a share."""
        assert self.analysis.median_step_ns is not None
        return self.analysis.median_step_ns / 1e9 / step_seconds(self.case) - 1

    @property
    def fraction(self) -> float:
        """The bubble as in the report, with jitter, as a share of the real steps."""
        assert self.analysis.bubble is not None
        return self.analysis.bubble.fraction_ratio

    @property
    def known_fraction(self) -> tuple[float, float]:
        """Bounds of the bubble: none, or all, of the added time was idle time in the pipeline."""
        known, added = self.truth, max(self.added, 0.0)
        idle = known.both + known.jitter
        return idle / (1 + added), (idle + added) / (1 + added)

    @property
    def beyond_known(self) -> float:
        """Distance of the jitter from its known range, which includes the added time."""
        known, jitter = self.truth.jitter, self.shares.jitter
        return min(jitter - known, 0.0) + max(jitter - known - max(self.added, 0.0), 0.0)

    def _share(self, *terms: str) -> float:
        """Mean over the ranks of each step, median over the steps; 0 without such a term."""
        ledger = self.analysis.ledger
        known = [term for term in terms if term in ledger.order]
        ns = [sum((rank.terms[term][rank.counted] for term in known), np.zeros(STEPS - 1)) for rank in ledger.ranks]
        return float(np.median(np.mean(ns, axis=0))) / (step_seconds(self.case) * 1e9)


def measure(pool: Pool, case: Case, directory: Path) -> Measurement:
    """Measure once on a quiet machine, otherwise the quietest of three times, independent of the result."""
    measurements: list[Measurement] = []
    while len(measurements) < ATTEMPTS and all(measurement.late_ratio > DISTURBED for measurement in measurements):
        measurements.append(measure_once(pool, case, directory / str(len(measurements))))
    return min(measurements, key=lambda measurement: measurement.late_ratio)


def measure_once(pool: Pool, case: Case, directory: Path) -> Measurement:
    """Measure once on any machine; every rank's terms sum to its wall time."""
    with Sleeper() as sleeper:
        clocked = pool.run(train, str(directory), case)
    analysis = traincope.analyze(traincope.open_run(directory))
    for rank in analysis.ledger.ranks:
        assert (sum(values for values in rank.terms.values() if values is not None) == rank.wall_ns).all()
    steps = list(zip(*(rank.actions for rank in clocked), strict=True))[1:]
    return Measurement(
        case=replace(case, durations=_durations([each for step in steps for each in step])),
        steps=tuple(map(_durations, steps)),
        analysis=analysis,
        waited_seconds=[rank.waited for rank in clocked],
        late_ratio=sleeper.late_ratio,
    )


def _durations(actions: Iterable[Mapping[tuple[str, int], Sequence[float]]]) -> Durations:
    """Median units of each stage's actions by kind. `actions`: those of a rank in a step."""
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for each in actions:
        for key, of_step in each.items():
            seconds[key] += of_step
    return {key: median(each) / UNIT_SECONDS for key, each in seconds.items()}
