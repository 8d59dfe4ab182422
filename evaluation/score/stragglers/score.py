"""Score of the straggler analysis: real trainings with ranks that are slow by a known time, and healthy ones.

`python -m evaluation.score.stragglers.score [--seed N] [--cases 60] [--healthy 50] [--jobs 2] [--keep DIRECTORY]`. It
fails with a name that is wrong, with a name in a healthy run, or if fewer than 95 % of the slow ranks are named.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from evaluation.score.stragglers.cases import DELAYED, TERMS, Case, Kind, cases, healthy
from traincope import analyze, open_run
from traincope.analysis.faults.faults import FaultKind

NEEDED_RECALL = 0.95
TRAINING = Path(__file__).with_name("training.py")
BURNERS = 2
BURST_SECONDS, PAUSE_SECONDS = (0.1, 2.0), (0.2, 3.0)
BURN = f"""
import random, time
while True:
    until = time.monotonic() + random.uniform{BURST_SECONDS}
    while time.monotonic() < until:
        pass
    time.sleep(random.uniform{PAUSE_SECONDS})
"""
"""Another process that uses a core in bursts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A named straggler."""

    rank: int
    term: str
    late_seconds: float
    confidence: str
    shape: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    case: Case
    named: tuple[Name, ...]
    slow_steps: tuple[tuple[int, ...], ...]
    """Ranks of each slow step from the step of a single delay on."""
    steps: int
    """Compared steps."""

    @property
    def wrong(self) -> bool:
        """A rank is named that is not slow. A single delay makes no straggler."""
        right = self.case.ranks if self.case.kind in DELAYED else ()
        return bool({name.rank for name in self.named} - set(right))

    @property
    def found(self) -> bool:
        if self.case.kind is Kind.ONCE:
            return self.slow_steps == (self.case.ranks,)
        return {name.rank for name in self.named} == set(self.case.ranks)

    @property
    def term_is_right(self) -> bool:
        return all(name.term in TERMS[self.case.phase] for name in self.named)

    @property
    def shape_is_right(self) -> bool:
        shapes = {Kind.GROWING: "growing", Kind.PERIODIC: "periodic"}
        return all(name.shape == shapes.get(self.case.kind, "steady") for name in self.named)

    @property
    def price_ratio(self) -> float | None:
        """Mean lateness of the named ranks / the injected delay."""
        if self.case.kind not in DELAYED or not self.named:
            return None
        share = self.case.steps / self.steps
        return sum(name.late_seconds for name in self.named) / len(self.named) / (self.case.mean_seconds * share)


def run(case: Case, directory: Path) -> Outcome:
    """Train and analyse. Raises RuntimeError if the training failed."""
    python, out = Path(sys.executable).parent, directory / "run"
    fault = ["--fault", case.fault] if case.ranks else []
    command = [
        *(python / "traincope", "run", "--out", out, *fault, "--"),
        *(python / "torchrun", "--standalone", "--nproc-per-node", case.size, TRAINING, case.layout, case.all_steps),
        *(case.link or ()),
    ]
    own = {"OMP_NUM_THREADS": "1", "TRAINCOPE_AGENT": "off", "TRAINCOPE_BUDGET": "none", "PYTHONPATH": Path.cwd()}
    with (directory / "log").open("wb") as log, _noise(case):
        done = subprocess.run(
            list(map(str, command)),
            env={**os.environ, **{name: str(value) for name, value in own.items()}},
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{case} failed; see {directory}/log")
    return outcome(case, out)


def outcome(case: Case, run: Path) -> Outcome:
    """Analyse a recorded training."""
    analysis = analyze(open_run(run))
    named = tuple(
        Name(
            rank=each.rank,
            term=each.cause,
            late_seconds=each.late_ns / 1e9,
            confidence=each.confidence,
            shape=each.pattern.shape.value,
        )
        for each in analysis.stragglers.named
    )
    slow = tuple(
        fault.ranks
        for fault in analysis.faults
        if fault.kind is FaultKind.SLOW_STEP and fault.step is not None and fault.step == case.first_step
    )
    return Outcome(case=case, named=named, slow_steps=slow, steps=analysis.stragglers.steps)


@contextmanager
def _noise(case: Case) -> Iterator[None]:
    """Let other processes use the cores in bursts, if the case is of a noisy machine."""
    count = BURNERS if case.kind is Kind.NOISY else 0
    burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@dataclass
class Tally:
    """All cases so far."""

    counts: dict[Kind, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    names: int = 0
    wrong: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    prices: list[float] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        case, counts = outcome.case, self.counts[outcome.case.kind]
        counts["cases"] += 1
        self.names += len(outcome.named)
        if outcome.wrong:
            counts["wrong"] += 1
            self.wrong.append(f"{case}: {outcome.named}")
        if case.kind in (*DELAYED, Kind.ONCE):
            counts["found"] += outcome.found
            if not outcome.found:
                self.missed.append(f"{case}: {outcome.named or outcome.slow_steps}")
        if case.kind in DELAYED and outcome.found:
            counts["term"] += outcome.term_is_right
            counts["shape"] += outcome.shape_is_right
            self.prices.append(outcome.price_ratio or 0.0)

    @property
    def recall(self) -> float | None:
        """None without a slow rank."""
        found, all_ = (sum(self.counts[kind][key] for kind in DELAYED) for key in ("found", "cases"))
        return found / all_ if all_ else None

    @property
    def passes(self) -> bool:
        return not self.wrong and self.recall is not None and self.recall >= NEEDED_RECALL

    def lines(self) -> Iterator[str]:
        yield "| kind | cases | all slow ranks named | wrong names | right term | right pattern |"
        yield "|---|---|---|---|---|---|"
        for kind in Kind:
            counts = self.counts[kind]
            if counts["cases"]:
                slow = kind in DELAYED
                cells = [counts["found"] if slow or kind is Kind.ONCE else "-", counts["wrong"]]
                cells += [counts["term"], counts["shape"]] if slow else ["-", "-"]
                yield f"| {kind} | {counts['cases']} | {' | '.join(map(str, cells))} |"
        recall = "unknown" if self.recall is None else f"{self.recall:.3f}"
        yield f"names: {self.names}, wrong cases: {len(self.wrong)}, recall {recall}"
        if self.prices:
            low, *_, high = sorted([*self.prices, *self.prices])
            yield f"lateness / injected delay: median {median(self.prices):.3f}, from {low:.2f} to {high:.2f}"
        yield from (f"WRONG {each}" for each in self.wrong)
        yield from (f"missed {each}" for each in self.missed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--healthy", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--keep", type=Path, help="keep all runs in this directory; otherwise only those with errors")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    chosen = [*cases(rng, count=options.cases), *healthy(rng, count=options.healthy)]
    rng.shuffle(chosen)
    print(f"seed {options.seed}, {os.cpu_count()} cores", flush=True)

    def one(numbered: tuple[int, Case]) -> Outcome:
        number, case = numbered
        directory = Path(tempfile.mkdtemp(prefix=f"stragglers-{number}-", dir=options.keep))
        found = run(case, directory)
        (directory / "outcome.json").write_text(json.dumps(asdict(found)))
        print(f"{number:3d} {case}: {found.named or found.slow_steps or 'none'}; {directory}", flush=True)
        if options.keep is None and (found.found or case.kind not in DELAYED) and not found.wrong:
            shutil.rmtree(directory, ignore_errors=True)
        return found

    tally = Tally()
    with ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(one, enumerate(chosen)):
            tally.add(found)
    print(f"\nseed {options.seed}: {len(chosen)} trainings", *tally.lines(), sep="\n")
    print("passed" if tally.passes else f"FAILED: no wrong name and a recall of {NEEDED_RECALL} are needed")
    return int(not tally.passes)


if __name__ == "__main__":
    sys.exit(main())
