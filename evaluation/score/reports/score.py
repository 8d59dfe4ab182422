"""Score of verdicts about programs that are built from public reports.

`python -m evaluation.score.reports.score [NAME ...] [--jobs N] [--runs N] [--busy] [--keep FOLDER] [--first]
[--again]`. Each program runs bare and recorded by `traincope run`, and the verdict's first finding is compared with
its truth. A score of all programs is written into the page, of one commit, next to the score of their first run. With
names, nothing is written, except by `--runs`: it writes how often each of them was right. `--first` runs the programs
that never ran, and writes their grades.
"""

import argparse
import json
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from evaluation.score.reports.grading import PARTLY, RIGHT, UNKNOWN, WRONG
from evaluation.score.reports.page import PAGE, ROOT, add_trial, first_grades, lines, trial_lines
from evaluation.score.reports.repeated import busy_cores, repeated_lines
from evaluation.score.reports.running import Outcome, is_wrong, judge
from evaluation.score.reports.truths import Truth, truths
from evaluation.written import UncommittedError, commit, write_table

NEEDED_RIGHT = 0.8
KEPT = ROOT / "traincope_runs" / "score-reports"
"""Bare ends of programs, graded rows of each commit, and run directories."""


def main() -> int:
    options = _options()
    every = truths()
    begun = first_grades() if options.first else {}
    chosen = [t for t in every if (not options.names or t.name in options.names) and t.name not in begun]
    unknown = set(options.names) - {truth.name for truth in every}
    if unknown:
        print(f"no program has the name {', '.join(sorted(unknown))}; they are {', '.join(t.name for t in every)}")
        return 2
    if options.runs > 1:
        return _repeat(chosen, options)
    try:
        measured = commit(ROOT, but=PAGE) if options.first or not options.names else ""
        outcomes = _judged(chosen, measured, options)
        if measured and commit(ROOT, but=PAGE) != measured:
            raise UncommittedError("the commit changed while the programs ran")
    except UncommittedError as error:
        print(f"nothing is written: {error}", file=sys.stderr)
        return 2
    _print_score(outcomes)
    if outcomes and options.first:
        add_trial(outcomes, measured)
    elif outcomes and measured:
        write_table(PAGE, "report-score", lines(chosen, outcomes, measured), by="make score-reports")
    if measured:
        write_table(PAGE, "report-score-trial", trial_lines(), by="make score-reports FIRST=1")
    return int(not passes([outcome.grade for outcome in outcomes]))


def _repeat(chosen: Sequence[Truth], options: argparse.Namespace) -> int:
    """Run each program several times, and write how often it was right."""
    try:
        measured = commit(ROOT, but=PAGE)
        outcomes = {}
        with busy_cores() if options.busy else nullcontext():
            for truth in chosen:
                outcomes[truth.name] = [_judged_once(truth, options) for _ in range(options.runs)]
        if commit(ROOT, but=PAGE) != measured:
            raise UncommittedError("the commit changed while the programs ran")
    except UncommittedError as error:
        print(f"nothing is written: {error}", file=sys.stderr)
        return 2
    write_table(PAGE, "report-score-runs", repeated_lines(outcomes, measured, busy=options.busy), by=_command(options))
    return int(any(outcome.grade != RIGHT for runs in outcomes.values() for outcome in runs))


def _command(options: argparse.Namespace) -> str:
    busy = " BUSY=1" if options.busy else ""
    return f'make score-reports{busy} RUNS={options.runs} ONLY="{" ".join(options.names)}"'


def _judged_once(truth: Truth, options: argparse.Namespace) -> Outcome:
    began = time.monotonic()
    outcome = judge(truth, keep=options.keep, bare=KEPT / "bare")
    print(f"{outcome.grade:8} {truth.name} ({time.monotonic() - began:.0f} s): {outcome.finding[:300]}", flush=True)
    return outcome


def passes(grades: Sequence[str]) -> bool:
    """Return whether a score is good enough: none is wrong, and enough are right."""
    enough = grades.count(RIGHT) >= NEEDED_RIGHT * len(grades) > 0
    return enough and not any(grade.startswith(WRONG) for grade in grades)


def _judged(chosen: Sequence[Truth], measured: str, options: argparse.Namespace) -> list[Outcome]:
    """Outcomes in the order of the programs. Rows of the same commit are kept, so that an interrupted score goes on."""
    path = KEPT / f"rows-{measured}.jsonl"
    kept = dict(_rows(path)) if measured and not options.again else {}

    def one(truth: Truth) -> Outcome:
        if truth.name in kept:
            return kept[truth.name]
        outcome = _judged_once(truth, options)
        if measured:
            KEPT.mkdir(parents=True, exist_ok=True)
            with path.open("a") as rows:
                rows.write(json.dumps({**asdict(outcome), "run": str(outcome.run)}) + "\n")
        if outcome.grade == RIGHT:
            shutil.rmtree(outcome.run, ignore_errors=True)
        return outcome

    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(one, chosen))


def _rows(path: Path) -> Iterator[tuple[str, Outcome]]:
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = json.loads(line)
        yield fields["name"], Outcome(**{**fields, "run": Path(fields["run"])})


def _print_score(outcomes: Sequence[Outcome]) -> None:
    grades = [outcome.grade for outcome in outcomes]
    counts = Counter(grade.split(":")[0] for grade in grades)
    print(", ".join(f"{counts[grade]} {grade}" for grade in (RIGHT, PARTLY, UNKNOWN, WRONG)), f"of {len(grades)}")
    for outcome in outcomes:
        if is_wrong(outcome):
            print(f"{outcome.name}: {outcome.grade}: {outcome.finding}; {outcome.run}")
    print("passed" if passes(grades) else f"FAILED: {NEEDED_RIGHT:.0%} right and none wrong are needed")


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="programs; without names, all")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--runs", type=int, default=1, help="runs of each program")
    parser.add_argument("--busy", action="store_true", help="keep another process busy on each core; with --runs")
    parser.add_argument("--keep", type=Path, default=KEPT / "runs", help="folder of the runs that are not right")
    parser.add_argument("--first", action="store_true", help="run what never ran, and keep its first grades")
    parser.add_argument("--again", action="store_true", help="run also what ran at this commit")
    options = parser.parse_args(arguments)
    if options.runs > 1 and not options.names:
        parser.error("--runs needs names of programs: ONLY")
    if options.busy and options.runs < 2:
        parser.error("--busy needs --runs")
    return options


if __name__ == "__main__":
    sys.exit(main())
