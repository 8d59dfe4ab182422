"""Score of the checks for silent corruption: real trainings on gloo, half of them with one flipped bit.

`python -m evaluation.score.corruption [--seed N] [--cases 50]`. Layouts, dtypes, tensors, bits, steps and intervals of
checks are drawn. The report judges each run, without knowing the case.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from benchmarks.judging import at_least_one
from evaluation.score.corrupting import Case, train_all
from tests.distributed.ranks.pool import Pool
from traincope import analyze, open_run
from traincope.analysis.faults.faults import Fault, FaultKind

CASES = 50
STEPS = 8
LAYOUTS = ("ddp", "hsdp", "tp", "fsdp")
SIZES = (2, 3, 4)
DTYPES = ("float32", "bfloat16")
STATES = (None, "exp_avg", "exp_avg_sq")
EVERY = (1, 2, 3)
KINDS = (FaultKind.CORRUPTED_STATE, FaultKind.REPLICAS_DIFFER)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report about one case."""

    case: Case
    faults: tuple[Fault, ...]

    @property
    def alarms(self) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.kind in KINDS)

    @property
    def is_right(self) -> bool:
        """A healthy training has no alarm. A flip is one fault, which names the rank, or the pair that cannot vote."""
        if self.case.rank is None:
            return not self.alarms
        if len(self.alarms) != 1:
            return False
        (fault,) = self.alarms
        named = fault.ranks == (self.case.rank,) or (self.num_replicas == 2 and self.case.rank in fault.ranks)
        return named and len(fault.ranks) <= 2 and fault.kind is FaultKind.CORRUPTED_STATE

    @property
    def num_replicas(self) -> int:
        """Ranks that hold the tensor."""
        if self.case.layout == "hsdp":
            return 2 if self.case.ranks == 4 else self.case.ranks
        return 1 if self.case.layout == "fsdp" else self.case.ranks


def draw(rng: random.Random, count: int) -> Iterator[Case]:
    """Draw `count` cases with a flip, and as many healthy ones of the same layouts.

    Without a replica, only the time between the update and the next one is checked. There every step is checked.
    """
    combined = [(layout, size, dtype) for layout in LAYOUTS for size in SIZES for dtype in DTYPES]
    rng.shuffle(combined)
    for number, (layout, size, dtype) in enumerate(islice(cycle(combined), count)):
        every = 1 if layout == "fsdp" else rng.choice(EVERY)
        shape = {"layout": layout, "ranks": size, "dtype": dtype, "steps": STEPS, "every": every}
        yield Case(name=f"healthy-{number}", **shape)  # type: ignore[arg-type]
        yield Case(
            name=f"flip-{number}",
            rank=rng.randrange(size),
            after_step=rng.randrange(STEPS - 1 - every),
            state=rng.choice(STATES),
            tensor=rng.random(),
            element=rng.random(),
            bit=rng.randrange(32 if dtype == "float32" else 16),
            **shape,  # type: ignore[arg-type]
        )


def run_cases(cases: Sequence[Case], directory: Path, pool: Pool) -> Iterator[Outcome]:
    """Train the cases of the pool's size, and judge them."""
    pool.run(train_all, cases, directory, timeout_seconds=600)
    for case in cases:
        yield Outcome(case, analyze(open_run(directory / case.name)).faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--cases", type=at_least_one, default=CASES)
    arguments = parser.parse_args()
    cases = list(draw(random.Random(arguments.seed), arguments.cases))
    print(f"seed {arguments.seed}: {arguments.cases} trainings with a flipped bit, as many without", flush=True)
    began, tally = time.monotonic(), Counter[tuple[str, bool, bool]]()
    directory = Path(tempfile.mkdtemp(prefix="corruption-"))
    wrong = []
    for size in SIZES:
        pool = Pool(size)
        try:
            for outcome in run_cases([case for case in cases if case.ranks == size], directory, pool):
                tally[outcome.case.layout, outcome.case.rank is not None, outcome.is_right] += 1
                if not outcome.is_right:
                    wrong.append(outcome)
        finally:
            pool.stop()
    for layout in LAYOUTS:
        flips, healthy = (
            f"{tally[layout, flipped, True]} of {tally[layout, flipped, True] + tally[layout, flipped, False]}"
            for flipped in (True, False)
        )
        print(f"{layout}: {flips} flipped bits named, {healthy} healthy trainings without an alarm")
    for outcome in wrong:
        named = [(fault.kind.value, fault.ranks, fault.step, fault.what) for fault in outcome.alarms]
        print(f"wrong: {outcome.case}: {named}; {directory / outcome.case.name}")
    print(f"{time.monotonic() - began:.0f} s")
    if not wrong:
        shutil.rmtree(directory)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
