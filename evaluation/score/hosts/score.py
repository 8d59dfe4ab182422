"""Score of verdicts about jobs of several hosts: real trainings on hosts made of namespaces, as root.

`python -m evaluation.score.hosts.score [--seed N] [--cases N] [--faults late,lost]`. Each host has its agent, its run
directory and its clocks; one link is slow. Faults, ranks, hosts and clocks are drawn. The verdicts while the job runs
and after it are compared with the injected truth. Those about a rank are compared with the verdict about the same fault
in a job of as many ranks on one host.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.judging import at_least_one
from evaluation.score.hosts.cases import FAULTS, RANK_FAULTS, Case, drawn
from evaluation.score.hosts.running import Outcome, run_case
from tests.live.peers.hosts import why_not

CASES = 20


def judged(case: Case, directory: Path) -> Outcome:
    """The outcome; a verdict that does not come is a problem."""
    try:
        return run_case(case, directory)
    except (AssertionError, subprocess.SubprocessError) as error:
        return Outcome(problems=[str(error)])


def differences(several: Outcome, single: Outcome) -> Iterator[str]:
    """Where the verdict about several hosts is not that about one."""
    verdicts = {verdict for verdict in (*several.after.values(), *single.after.values()) if verdict}
    if len(verdicts) != 1:
        yield f"on several hosts {several.after}, on one {single.after}"


def main() -> int:
    options = _options()
    reason = why_not()
    if reason:
        print(reason)
        return 1
    print(f"seed {options.seed}", flush=True)
    right: Counter[str] = Counter()
    began, lost_ns, failed = time.monotonic(), [], 0
    for number, case in enumerate(drawn(random.Random(options.seed), count=options.cases, faults=options.faults)):
        directory = Path(tempfile.mkdtemp(prefix=f"score-hosts-{number:03d}-"))
        outcome = judged(case, directory / "several")
        problems = list(outcome.problems)
        if case.fault in RANK_FAULTS and not problems:
            single = judged(case.on_one_host(), directory / "single")
            problems += [*(f"on one host: {each}" for each in single.problems), *differences(outcome, single)]
        right[case.fault] += not problems
        failed += bool(problems)
        lost_ns += [] if outcome.lost_ns is None else [outcome.lost_ns]
        print(f"{number:3d} {'WRONG' if problems else 'right'} {case}", flush=True)
        print(f"    live {outcome.live}; after {outcome.after}", flush=True)
        for problem in problems:
            print(f"    {problem}", flush=True)
        if problems:
            print(f"    {directory}", flush=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    minutes = (time.monotonic() - began) / 60
    print(f"\nseed {options.seed}: {sum(right.values())} of {options.cases} right in {minutes:.0f} min: {dict(right)}")
    if lost_ns:
        print(f"records of lost hosts that no copy holds: at most {max(lost_ns) / 1e9:.1f} s before the loss")
    return int(failed > 0)


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--cases", type=at_least_one, default=CASES)
    parser.add_argument("--faults", type=lambda text: tuple(text.split(",")), default=FAULTS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
