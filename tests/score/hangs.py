"""Score of the hang analysis: real trainings that stop or end by an injected fault, and the verdict's culprits.

`python -m tests.score.hangs [--seed N] [--cases N] [--faults a,b] [--layouts a,b]`. Each case trains under torchrun,
recorded by `traincope run`; the verdict is read while the job stands still, and again after SIGTERM.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.injector.test_kinds import EFFECTS, HANGS
from traincope import analyze, open_run
from traincope.analysis import Finding, FindingKind
from traincope.errors import TraincopeError
from traincope.faults import Truth, read_truths
from traincope.store.layout import INJECTED_FILE

STEPS = 150
LAYOUTS = ("ddp", "fsdp", "tp", "plain", "pipeline")
SIZES = (2, 4)
RECORDINGS = {"windows": {}, "full": {"TRAINCOPE_BUDGET": "none"}, "level 0": {"TRAINCOPE_LEVEL": "0"}}
FAULTS = (
    "sleep",
    "lock",
    "loop",
    "gil",
    "sigstop",
    "deadlock",
    "missing_collective",
    "other_collective",
    "wrong_size",
    "wrong_dtype",
    "wrong_group",
    "worker_stuck",
    "checkpoint_stuck",
    "teardown_stuck",
    "exception",
    "out_of_memory",
    "sigkill",
    "sigterm",
    "exit_0",
    "leave_early",
    "disk_full",
    "worker_killed",
)
"""Faults that stop or end a run."""
NOT_INJECTED = {
    (fault, layout)
    for fault in ("missing_collective", "other_collective", "wrong_size", "wrong_dtype", "wrong_group")
    for layout in ("tp", "pipeline")
}
"""The injector changes calls of `torch.distributed`. Functional collectives, and stages, make none."""
NAMING = frozenset(
    {FindingKind.HANG, FindingKind.MISMATCH, FindingKind.KILLED_RANK, FindingKind.FAILED_RANK, FindingKind.STOPPED_JOB}
)
"""Findings that name the rank to blame for a stop or an end."""
RIGHT, WRONG, UNKNOWN = "right", "WRONG", "unknown"
WAIT_SECONDS = 20.0
START_SECONDS = 120.0
END_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    fault: str
    layout: str
    size: int
    recording: str
    rank: int
    step: int

    def __str__(self) -> str:
        return f"{self.fault} on rank {self.rank} of {self.size} in step {self.step}, {self.layout}, {self.recording}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    named: tuple[int, ...]
    """Empty if no rank is named."""
    kind: str
    confidence: str
    text: str
    seconds: float | None = None

    def score(self, truth: tuple[int, ...]) -> str:
        if self.confidence == UNKNOWN or not self.named:
            return UNKNOWN
        return RIGHT if self.named == truth else WRONG


NOTHING = Verdict(named=(), kind="none", confidence=UNKNOWN, text="")


def cases(rng: random.Random, *, count: int, faults: Sequence[str], layouts: Sequence[str]) -> Iterator[Case]:
    """Stratified: every fault as often as any other, then layouts, sizes and recordings in turn."""
    combined = [(layout, size, recording) for layout in layouts for size in SIZES for recording in RECORDINGS]
    rng.shuffle(combined)
    order = list(faults)
    for number in range(count):
        if number % len(order) == 0:
            rng.shuffle(order)
        fault = order[number % len(order)]
        layout, size, recording = next(
            each for each in (*combined[number % len(combined) :], *combined) if (fault, each[0]) not in NOT_INJECTED
        )
        yield Case(
            fault=fault,
            layout=layout,
            size=size,
            recording=recording,
            rank=rng.randrange(size),
            step=rng.randrange(12, 100),
        )


def judge(case: Case, directory: Path) -> tuple[Verdict, Verdict, tuple[Truth, ...]]:
    """The verdict while the job stands still, and after its end."""
    run = directory / "run"
    python = Path(sys.executable).parent
    fault = f"{case.fault}@rank={case.rank},step={case.step}"
    script = Path(__file__).with_name("training.py")
    command = [
        *(python / "traincope", "run", "--out", run, "--fault", fault, "--"),
        *(python / "torchrun", "--standalone", "--nproc-per-node", case.size),
        *(script, case.layout, STEPS, directory),
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            list(map(str, command)),
            env={**os.environ, "OMP_NUM_THREADS": "1", **RECORDINGS[case.recording]},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        began = _await_truth(process, run)
        live = NOTHING
        if began is not None and EFFECTS[case.fault] == HANGS:
            live = _live(process, run, began=began)
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            live = live if live.named else verdict(run)
            process.send_signal(signal.SIGTERM)
            process.wait(END_SECONDS)
    finally:
        subprocess.run(["pkill", "-KILL", "-f", str(directory)], check=False)
        process.wait()
    return live, verdict(run), read_truths(run / INJECTED_FILE)


def _await_truth(process: subprocess.Popen[bytes], run: Path) -> float | None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if (run / INJECTED_FILE).exists():
            return time.monotonic()
        if process.poll() is not None:
            return None
        time.sleep(0.1)
    return None


def _live(process: subprocess.Popen[bytes], run: Path, *, began: float) -> Verdict:
    """Read the verdict until it names a rank, or the job ended."""
    found = NOTHING
    while time.monotonic() - began < WAIT_SECONDS:
        time.sleep(1.0)
        if process.poll() is not None:
            return found
        found = verdict(run, seconds=time.monotonic() - began)
        if found.named and found.confidence != UNKNOWN:
            break
    return found


def verdict(run: Path, *, seconds: float | None = None) -> Verdict:
    try:
        findings = analyze(open_run(run)).verdict
    except TraincopeError as error:
        return Verdict(named=(), kind="error", confidence=UNKNOWN, text=str(error))
    first: Finding | None = next(iter(findings), None)
    if first is None or first.kind not in NAMING:
        return Verdict(named=(), kind="none", confidence=UNKNOWN, text="" if first is None else first.evidence)
    return Verdict(
        named=first.ranks, kind=first.kind.value, confidence=first.confidence, text=first.evidence, seconds=seconds
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--cases", type=int, default=120)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--keep", type=Path, help="keep the runs in this directory")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    scores: Counter[tuple[str, str]] = Counter()
    chosen = cases(
        random.Random(options.seed),
        count=options.cases,
        faults=options.faults.split(","),
        layouts=options.layouts.split(","),
    )
    for number, case in enumerate(chosen):
        directory = Path(tempfile.mkdtemp(prefix=f"score-{number:03d}-", dir=options.keep))
        live, after, truths = judge(case, directory)
        truth = tuple(range(case.size)) if case.fault == "deadlock" else (case.rank,)
        if not truths:
            print(f"{number:3d} not injected: {case}; {directory}", flush=True)
            scores["after", "not injected"] += 1
            continue
        print(f"{number:3d} {case}; {directory}", flush=True)
        for name, found in (("live", live), ("after", after)):
            if found is NOTHING:
                continue
            score = found.score(truth)
            scores[name, score] += 1
            late = "" if found.seconds is None else f" after {found.seconds:.0f} s"
            print(
                f"    {name:5} {score:7} {found.kind} {found.named} {found.confidence}{late}: {found.text[:300]}",
                flush=True,
            )
    for name in ("live", "after"):
        right, wrong, unknown = (scores[name, score] for score in (RIGHT, WRONG, UNKNOWN))
        named, cases_of = right + wrong, right + wrong + unknown
        precision = f"{right / named:.3f}" if named else "none named"
        recall = f"{right / cases_of:.3f}" if cases_of else "no case"
        print(f"{name}: {right} right, {wrong} wrong, {unknown} unknown; precision {precision}, recall {recall}")
    return int(any(scores[name, WRONG] for name in ("live", "after")))


if __name__ == "__main__":
    sys.exit(main())
