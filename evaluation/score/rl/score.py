"""Score of reports about post-training with reinforcement.

`python -m evaluation.score.rl.score [NAME ...] [--keep FOLDER]`. Each case runs bare and recorded, all its jobs
at once. A score of all cases is written into the page, of one commit.
"""

import argparse
import platform
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import torch

from evaluation.score.reports.grading import PARTLY, RIGHT, UNKNOWN, WRONG
from evaluation.score.reports.running import Outcome
from evaluation.score.rl.cases import Case, cases
from evaluation.score.rl.running import judge
from evaluation.written import UncommittedError, commit, write_table

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "develop" / "report-score.md"
KEPT = ROOT / "traincope_runs" / "score-rl"
GRADES = (RIGHT, PARTLY, UNKNOWN, WRONG)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases; without names, all")
    parser.add_argument("--keep", type=Path, default=KEPT, help="folder of the runs that are not right")
    options = parser.parse_args()
    every = {case.name: case for case in cases()}
    if unknown := set(options.names) - every.keys():
        print(f"no case has the name {', '.join(sorted(unknown))}; they are {', '.join(every)}")
        return 2
    chosen = [every[name] for name in options.names] or [*every.values()]
    try:
        measured = "" if options.names else commit(ROOT, but=PAGE)
        outcomes = [_judged(case, options.keep) for case in chosen]
        if measured and commit(ROOT, but=PAGE) != measured:
            raise UncommittedError("the commit changed while the cases ran")
    except UncommittedError as error:
        print(f"nothing is written: {error}", file=sys.stderr)
        return 2
    print(", ".join(f"{number} {grade}" for grade, number in _counts(outcomes).items()), f"of {len(outcomes)}")
    if measured:
        write_table(PAGE, "rl-score", lines(chosen, outcomes, measured), by="make score-rl")
    return int(any(outcome.grade != RIGHT for outcome in outcomes))


def _judged(case: Case, keep: Path) -> Outcome:
    began = time.monotonic()
    outcome = judge(case, keep=keep)
    print(f"{outcome.grade:8} {case.name} ({time.monotonic() - began:.0f} s): {outcome.finding[:400]}", flush=True)
    if outcome.grade == RIGHT:
        shutil.rmtree(outcome.run, ignore_errors=True)
    return outcome


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    found = Counter(outcome.grade.split(":")[0] for outcome in outcomes)
    return {grade: found[grade] for grade in GRADES}


def lines(chosen: Sequence[Case], outcomes: Sequence[Outcome], measured: str) -> Iterator[str]:
    """Lines of the page's table."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    yield f"Commit {measured}, {date.today().isoformat()}: {versions}."
    yield ""
    yield "|cases|right|partly|unknown|wrong|"
    yield "|---|---|---|---|---|"
    for name, healthy in (("bottlenecks", False), ("healthy", True)):
        of_kind = [outcome for case, outcome in zip(chosen, outcomes, strict=True) if case.healthy is healthy]
        yield f"|{name}|{'|'.join(map(str, _counts(of_kind).values()))}|"
    yield ""
    yield "|case|jobs|truth|grade|"
    yield "|---|---|---|---|"
    for case, outcome in zip(chosen, outcomes, strict=True):
        jobs = ", ".join(filter(None, case.jobs)) or "one"
        yield f"|{case.name.replace('_', ' ')}|{jobs}|{case.truth.truth}|{outcome.grade.split(':')[0]}|"


if __name__ == "__main__":
    sys.exit(main())
