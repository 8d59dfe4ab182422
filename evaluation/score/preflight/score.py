"""python -m evaluation.score.preflight.score: faults that `traincope preflight` names, and names that are false.

Four hosts of namespaces, each with a rank, a name and a network of its own (root needed), measure one preflight per
trial. A trial is right if the judgement names the injected fault and nothing else.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from benchmarks.judging import at_least_one
from evaluation.score.preflight.cases import Kind, trials
from evaluation.score.preflight.machine import machine
from tests.live.peers.hosts import why_not


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--cases", type=at_least_one, default=20, help="trials of each kind of fault")
    parser.add_argument("--healthy", type=int, default=20)
    options = parser.parse_args()
    if why_not():
        print(f"not scored: {why_not()}")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the hosts end with their context
    rng = random.Random(options.seed)
    chosen = list(trials(rng, count=options.cases, healthy=options.healthy))
    rng.shuffle(chosen)
    print(f"seed {options.seed}, {len(chosen)} trials, {os.cpu_count()} cores", flush=True)
    counts: dict[Kind, Counter[str]] = defaultdict(Counter)
    directory = Path(tempfile.mkdtemp(prefix="preflight-"))
    with machine(directory) as made:
        for number, trial in enumerate(chosen):
            names, answer = made.run(trial)
            found = all(name in names for name in trial.right_names)
            false = [name for name in names if name not in trial.right_names]
            counts[trial.kind].update(trials=1, found=found, false=bool(false))
            verdict = "right" if found and not false else "FALSE" if false else "missed"
            print(f"{number:3d} {trial}: {verdict} {answer['names']} in {answer['seconds']:.0f} s", flush=True)
            if verdict != "right":
                print(f"    messages of 1 MiB in ms: {answer['milliseconds']}", flush=True)
                print(f"    seconds of the stages in both halves: {answer['stages']}", flush=True)
    shutil.rmtree(directory)  # After an error it stays, because the log of the ranks is in it.
    print(*_lines(counts), sep="\n")
    wrong = sum(each["trials"] - each["found"] + each["false"] for each in counts.values())
    return int(wrong > 0)


def _lines(counts: dict[Kind, Counter[str]]) -> Iterator[str]:
    yield "| injected | trials | found and named | trials with a false name |"
    yield "|---|---|---|---|"
    for kind in Kind:
        each = counts[kind]
        if each["trials"]:
            found = "-" if kind is Kind.HEALTHY else each["found"]
            yield f"| {kind} | {each['trials']} | {found} | {each['false']} |"


if __name__ == "__main__":
    sys.exit(main())
