"""A workload run for real, recorded and analysed, and how much noise the machine made meanwhile.

What is found is allowed one hundredth of a step, and three where the noise was more than one. The noise knows nothing
of what was recorded: it is how far the same sleeps were off without torch, played by the watch beside the training, in
the worst of their steps; and how long the same model takes without the sleeps and unobserved, right after it. A
workload is run again where the noise was more than one hundredth, whatever was found; where it never was below one and
a half, which is half of what is allowed then, nothing is said of its times.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

import traincope
from tests.distributed.pool import Pool
from tests.truth.beside import Beside
from tests.truth.playing import Spent, Watch, hidden, play, truth, wall_ns
from tests.truth.rows import Row
from tests.truth.training import train
from tests.truth.workloads import TOLD, Workload
from traincope.analysis import Analysis, RankLedger
from traincope.analysis.findings import FindingKind
from traincope.analysis.terms import EVALUATION

WITHIN, WITHIN_NOISE = 0.01, 0.03
"""Of a step."""
ATTEMPTS = 3
PART = "workloads"


class Control(Beside):
    """Plays a workload by the watch, in threads, while its block runs."""

    def __init__(self, workload: Workload, *, steps: int) -> None:
        super().__init__("control")
        self._workload, self._steps = workload, steps
        self._played: list[list[list[Spent]]] = []

    def error_ns(self, truth: Sequence[Spent]) -> int:
        """The largest in any step but the first, which has nothing before it."""
        return max(
            abs(took[term] - known[term])
            for played in self._played
            for steps, known in zip(played, truth, strict=True)
            for took in steps[1:]
            for term in known
        )

    def work(self) -> None:
        while not (self.over.is_set() and self._played):
            self._played.append(play(self._workload, Watch, steps=self._steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A workload, what was recorded of it, and what its sleepers did meanwhile."""

    workload: Workload
    truth: list[Spent]
    asleep_ns: int
    """How far the sleepers beside it were off."""
    awake_ns: int
    """How long its forward or backward takes without sleeps."""
    analysis: Analysis

    @property
    def noise(self) -> float:
        """As a share of a step."""
        return (self.asleep_ns + self.awake_ns) / self.step_ns

    @property
    def step_ns(self) -> float:
        """Mean over the ranks."""
        return mean(map(wall_ns, self.truth))

    @property
    def within(self) -> float:
        return WITHIN if self.noise <= WITHIN else WITHIN_NOISE

    @property
    def disturbed(self) -> bool:
        """Nothing can be said of times."""
        return self.noise > WITHIN_NOISE / 2

    def rows(self) -> Iterator[Row]:
        """Of each term the rank that is furthest off."""
        found = [told(rank) for rank in self.analysis.ledger.ranks]
        for term in found[0]:
            pairs = [(known.get(term, 0), said[term]) for known, said in zip(self.truth, found, strict=True)]
            rank = max(range(len(pairs)), key=lambda rank: abs(pairs[rank][1] - pairs[rank][0]))
            yield self._time(f"{term}, rank {rank}", *pairs[rank])
        yield from self._hidden()
        yield from self._straggler()
        kinds = {finding.kind for finding in self.analysis.verdict} & TOLD
        yield self._fact("findings", _kinds(self.workload.findings), _kinds(kinds))

    def _straggler(self) -> Iterator[Row]:
        stragglers, told = self.analysis.stragglers, self.workload.straggler
        named = [f"rank {one.rank} by {one.cause}" for one in stragglers.named]
        known = "none" if told is None else f"rank {told[0]} by {told[1]}"
        yield self._fact("straggler", known, ", ".join(named) or "none")
        if told is not None:
            waits = (ns for spent in self.truth for term, ns in spent.items() if term.startswith("exposed_wait"))
            (caused_ns,) = (rank.caused_wait_ns for rank in stragglers.ranks if rank.rank == told[0])
            caused_ns /= self.analysis.ledger.rank_steps
            yield self._time(f"waited for rank {told[0]}, mean", sum(waits) / self.workload.ranks, caused_ns)

    def _hidden(self) -> Iterator[Row]:
        """Mean over the ranks."""
        for axis in self.workload.axes:
            rows = [row for row in self.analysis.comm if row.axis == axis]
            hidden_ns = sum(row.transfer_ns + row.wait_ns - row.exposed_ns for row in rows)
            known = mean(spent[hidden(axis)] for spent in self.truth)
            found = hidden_ns / self.analysis.ledger.rank_steps
            if self.workload.ends_seen:
                yield self._time(f"{hidden(axis)}, mean", known, found)
            else:
                row = self._time(f"{hidden(axis)}, at most", known, found)
                yield replace(row, holds=True, of_step=None) if found > known else row

    def _time(self, what: str, truth_ns: float, measured_ns: float) -> Row:
        error = (measured_ns - truth_ns) / self.step_ns
        return Row(
            part=PART,
            case=self.workload.name,
            what=what,
            truth=f"{truth_ns / 1e6:.1f} ms",
            measured=f"{measured_ns / 1e6:.1f} ms",
            error=f"{error:+.2%}",
            noise=f"{self.noise:.2%}",
            of_step=error,
            holds=abs(error) <= self.within,
        )

    def _fact(self, what: str, known: str, found: str) -> Row:
        return Row(part=PART, case=self.workload.name, what=what, truth=known, measured=found, holds=known == found)


def told(rank: RankLedger) -> Spent:
    """What the ledger says of the median step, term by term; of evaluations, what it says of all of them."""
    assert (sum(values for values in rank.terms.values() if values is not None) == rank.wall_ns).all()
    said = {term: round(median(ns[rank.counted])) for term, ns in rank.terms.items() if ns is not None}
    return said | {EVALUATION: rank.evaluation_ns // len(rank.numbers)}


def _kinds(kinds: Iterable[FindingKind]) -> str:
    return ", ".join(sorted(kinds)) or "none"


def weigh(pool: Pool, workload: Workload, directory: Path, *, steps: int) -> Weighed:
    """Once if the machine was quiet; the quietest of three times if it never was. What was found decides nothing."""
    known, attempts = truth(workload), []
    while len(attempts) < ATTEMPTS and all(one.noise > WITHIN for one in attempts):
        run = directory / str(len(attempts))
        with Control(workload, steps=steps) as control:
            awake_ns = max(pool.run(train, str(run), workload, steps))
        attempts.append(
            Weighed(
                workload=workload,
                truth=known,
                asleep_ns=control.error_ns(known),
                awake_ns=awake_ns,
                analysis=traincope.analyze(traincope.open_run(run)),
            )
        )
    return min(attempts, key=lambda one: one.noise)
