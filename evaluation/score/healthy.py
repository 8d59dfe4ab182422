"""Short healthy trainings of differing layout: every stop, mismatch or failed rank that is reported is a false alarm.

`python -m evaluation.score.healthy [--seed N] [--runs 50] [--jobs 2]`. The agent watches each of them, and the
verdict is read while it trains and after its end.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice, product
from pathlib import Path

from benchmarks.judging import at_least_one
from evaluation.score.cases import LAYOUTS, RECORDINGS
from evaluation.score.judging import Verdict, verdict
from traincope.store.layout import AGENT_LOG

SIZES = (2, 4, 2, 3, 2, 4, 8)
MIN_STEPS, MAX_STEPS = 40, 120
READ_SECONDS = 3.0
DEADLINE_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    name: str
    size: int
    recording: str
    steps: int

    def __str__(self) -> str:
        return f"{self.name} on {self.size} ranks, {self.steps} steps, {self.recording}"


def layouts(rng: random.Random, count: int) -> Iterator[Layout]:
    combined = list(product(LAYOUTS, RECORDINGS))
    rng.shuffle(combined)
    for (name, recording), size in islice(zip(cycle(combined), cycle(SIZES), strict=False), count):
        yield Layout(name=name, size=size, recording=recording, steps=rng.randint(MIN_STEPS, MAX_STEPS))


def alarms(layout: Layout, directory: Path) -> list[str]:
    """Train, and return everything that is reported although nothing happened. Raises RuntimeError if it failed."""
    run, python = directory / "run", Path(sys.executable).parent
    command = [
        *(python / "traincope", "run", "--out", run, "--"),
        *(python / "torchrun", "--standalone", "--nproc-per-node", layout.size),
        *(Path(__file__).with_name("training.py"), layout.name, layout.steps, directory),
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            list(map(str, command)),
            env={**os.environ, "OMP_NUM_THREADS": "1", "TRAINCOPE_AGENT": "on", **RECORDINGS[layout.recording]},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    found, until = [], time.monotonic() + DEADLINE_SECONDS
    while process.poll() is None and time.monotonic() < until:
        time.sleep(READ_SECONDS)
        found.append(verdict(run))
    process.kill()
    if process.wait() != 0:
        raise RuntimeError(f"{layout} failed; see {directory}/log")
    found.append(verdict(run))
    logged = "".join(path.read_text() for path in run.glob(f"attempt-*/rank-*/{AGENT_LOG}"))
    return [*filter(None, map(_alarm, found)), *(line for line in logged.splitlines() if "hang: " in line)]


def _alarm(found: Verdict) -> str:
    """Empty for a running job, also for a job without records yet."""
    return f"{found.kind} {found.named}: {found.text}" if found.kind not in ("none", "error") else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--runs", type=at_least_one, default=50)
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    options = parser.parse_args()
    chosen = list(layouts(random.Random(options.seed), options.runs))
    print(f"seed {options.seed}", flush=True)

    def one(layout: Layout) -> list[str]:
        directory = Path(tempfile.mkdtemp(prefix="healthy-"))
        found = alarms(layout, directory)
        if not found:
            shutil.rmtree(directory, ignore_errors=True)
        return found

    count = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for number, (layout, found) in enumerate(zip(chosen, pool.map(one, chosen), strict=True)):
            print(f"{number:3d} {layout}: {len(found)} false alarms", *found, sep="\n      ", flush=True)
            count += bool(found)
    print(f"seed {options.seed}: {len(chosen)} healthy runs, {count} with a false alarm")
    return int(bool(count))


if __name__ == "__main__":
    sys.exit(main())
