"""Measuring a workload: run, record, analyse, and estimate the machine's noise at the same time.

The truth of forward and backward is the workload's own time and the CPU time that torch itself takes in the same model
directly afterwards, without recording. The allowed error is 1 % of a step, or 3 % if the noise was more than 1 %. The
noise is independent of the record: it is the error of the same sleeps without torch, played in the background of the
training, in their worst step. A workload runs again if the noise was more than 1 %, whatever its result. If the noise
was never below 1.5 % (half of the larger tolerance), times are not judged.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

import traincope
from evaluation.truth.machines.beside import Background
from evaluation.truth.rows import Row
from evaluation.truth.trainings.playing import RealClock, Spent, hidden, play, truth, wall_ns
from evaluation.truth.trainings.training import train
from evaluation.truth.trainings.workloads import JUDGED, Workload
from tests.distributed.ranks.pool import Pool
from traincope.analysis import Analysis, RankLedger
from traincope.analysis.attribution.terms import EVALUATION
from traincope.analysis.verdict.findings import FindingKind

WITHIN, WITHIN_NOISE = 0.01, 0.03
"""Tolerances as shares of a step."""
ATTEMPTS = 3
NAMING_STEPS = 20
"""Steps of half a second or more in which a straggler without exception is named."""
PART = "workloads"


class Control(Background):
    """Plays a workload with the real clock, in threads, while its block runs."""

    def __init__(self, workload: Workload, *, steps: int) -> None:
        super().__init__("control")
        self._workload, self._steps = workload, steps
        self._played: list[list[list[Spent]]] = []

    def error_ns(self, truth: Sequence[Spent]) -> int:
        """The largest error in any step except the first, which has no previous step."""
        return max(
            abs(took[term] - known[term])
            for played in self._played
            for steps, known in zip(played, truth, strict=True)
            for took in steps[1:]
            for term in known
        )

    def work(self) -> None:
        while not (self.over.is_set() and self._played):
            self._played.append(play(self._workload, RealClock, steps=self._steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredWorkload:
    """A workload, its record, and the error of background sleepers at the same time."""

    workload: Workload
    truth: list[Spent]
    """Of each rank, with torch's own work."""
    asleep_ns: int
    """Error of the background sleepers."""
    analysis: Analysis

    @property
    def noise(self) -> float:
        """Noise as a share of a step."""
        return self.asleep_ns / self.step_ns

    @property
    def step_ns(self) -> float:
        """Mean over the ranks."""
        return mean(map(wall_ns, self.truth))

    @property
    def within(self) -> float:
        return WITHIN if self.noise <= WITHIN else WITHIN_NOISE

    @property
    def disturbed(self) -> bool:
        """True: times are not judged."""
        return self.noise > WITHIN_NOISE / 2

    @property
    def names_stragglers(self) -> bool:
        """True if there are enough steps to name a straggler."""
        return self.analysis.stragglers.steps >= NAMING_STEPS

    def rows(self) -> Iterator[Row]:
        """For each term the rank with the largest error."""
        observed = [median_terms(rank) for rank in self.analysis.ledger.ranks]
        for term in observed[0]:
            pairs = [(known.get(term, 0), terms[term]) for known, terms in zip(self.truth, observed, strict=True)]
            rank = max(range(len(pairs)), key=lambda rank: abs(pairs[rank][1] - pairs[rank][0]))
            yield self._time(f"{term}, rank {rank}", *pairs[rank])
        yield from self._hidden()
        yield from self._straggler()
        if self.names_stragglers:
            kinds = {finding.kind for finding in self.analysis.verdict} & JUDGED
            yield self._fact("findings", _kinds(self.workload.findings), _kinds(kinds))

    def _straggler(self) -> Iterator[Row]:
        stragglers, expected = self.analysis.stragglers, self.workload.straggler
        named = [f"rank {straggler.rank} by {straggler.cause}" for straggler in stragglers.named]
        known = "none" if expected is None or not self.names_stragglers else f"rank {expected[0]} by {expected[1]}"
        yield self._fact("straggler", known, ", ".join(named) or "none")
        if expected is not None:
            waits = (ns for spent in self.truth for term, ns in spent.items() if term.startswith("exposed_wait"))
            (caused_ns,) = (rank.straggler_wait_ns for rank in stragglers.ranks if rank.rank == expected[0])
            caused_ns /= self.analysis.ledger.rank_steps
            yield self._time(f"waited for rank {expected[0]}, mean", sum(waits) / self.workload.ranks, caused_ns)

    def _hidden(self) -> Iterator[Row]:
        """Mean over the ranks."""
        for axis in self.workload.axes:
            rows = [row for row in self.analysis.comm if row.axis == axis]
            hidden_ns = sum(row.transfer_ns + row.wait_ns - row.exposed_ns for row in rows)
            known = mean(spent[hidden(axis)] for spent in self.truth)
            observed = hidden_ns / self.analysis.ledger.rank_steps
            if self.workload.ends_seen:
                yield self._time(f"{hidden(axis)}, mean", known, observed)
            else:
                row = self._time(f"{hidden(axis)}, at most", known, observed)
                yield replace(row, holds=True, of_step=None) if observed > known else row

    def _time(self, quantity: str, truth_ns: float, measured_ns: float) -> Row:
        error = (measured_ns - truth_ns) / self.step_ns
        return Row(
            part=PART,
            case=self.workload.name,
            quantity=quantity,
            truth=f"{truth_ns / 1e6:.1f} ms",
            measured=f"{measured_ns / 1e6:.1f} ms",
            error=f"{error:+.2%}",
            noise=f"{self.noise:.2%}",
            of_step=error,
            holds=abs(error) <= self.within,
        )

    def _fact(self, quantity: str, known: str, observed: str) -> Row:
        return Row(
            part=PART,
            case=self.workload.name,
            quantity=quantity,
            truth=known,
            measured=observed,
            holds=known == observed,
        )


def _with_torch(spent: Spent, forward_ns: int, backward_ns: int) -> Spent:
    own_ns = {"forward": forward_ns, "backward": backward_ns}
    return {term: ns + own_ns.get(term, 0) for term, ns in spent.items()}


def median_terms(rank: RankLedger) -> Spent:
    """Terms of the median step in the ledger; for evaluations the mean of all of them."""
    assert (sum(values for values in rank.terms.values() if values is not None) == rank.wall_ns).all()
    terms = {term: round(median(ns[rank.counted])) for term, ns in rank.terms.items() if ns is not None}
    return terms | {EVALUATION: rank.evaluation_ns // len(rank.numbers)}


def _kinds(kinds: Iterable[FindingKind]) -> str:
    return ", ".join(sorted(kinds)) or "none"


def measure_workload(
    pool: Pool, workload: Workload, directory: Path, *, steps: int, times: int = ATTEMPTS
) -> MeasuredWorkload:
    """Measure once on a quiet machine, otherwise the quietest of so many times, independent of the result."""
    known, attempts = truth(workload), []
    while len(attempts) < times and all(attempt.noise > WITHIN for attempt in attempts):
        run = directory / str(len(attempts))
        with Control(workload, steps=steps) as control:
            own_ns = pool.run(train, str(run), workload, steps)
        attempts.append(
            MeasuredWorkload(
                workload=workload,
                truth=[_with_torch(spent, *own) for spent, own in zip(known, own_ns, strict=True)],
                asleep_ns=control.error_ns(known),
                analysis=traincope.analyze(traincope.open_run(run)),
            )
        )
    return min(attempts, key=lambda attempt: attempt.noise)
