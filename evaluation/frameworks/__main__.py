"""python -m evaluation.frameworks [NAME ...]: programs of real packages, recorded and held to the truth.

A name chooses the programs whose name, package or file contains it, in any case; without a name all run. The rows of
these programs in docs/develop/frameworks.md are written anew. Exits with 1 if a row misses, or if a program does not
run. A package that does not install is a row with its reason, and no failure.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import traincope
from evaluation.frameworks import page
from evaluation.frameworks.environments import ROOT, NotInstalled, python_of, versions_of
from evaluation.frameworks.judging import judge
from evaluation.frameworks.packages.cases import CASES as OF_PACKAGES
from evaluation.frameworks.programs.cases import CASES as OF_TORCH
from evaluation.frameworks.training import train
from evaluation.frameworks.truth import Case
from evaluation.truth.rows import Row

CASES = (*OF_TORCH, *OF_PACKAGES)
PAGE = ROOT / "docs" / "develop" / "frameworks.md"
DOES_NOT_RUN = "does not run here without traincope"
FAILS_RECORDED = "runs without traincope, but not recorded"


class NotRecorded(Exception):
    """The program fails under `traincope run`, and left no run; with its reason."""


class NotTrained(Exception):
    """The bare program fails here; with its reason."""


def judged(case: Case, directory: Path) -> Iterator[Row]:
    """Train the program twice and judge the recording. Raises NotInstalled, NotTrained and NotRecorded."""
    python = python_of(case.package)
    try:
        bare = train(case, python=python, directory=directory / "bare", run=None)
        if bare.exit_code:
            raise NotTrained(bare.reason)
        run = directory / "run"
        observed = train(case, python=python, directory=directory / "observed", run=run)
        if observed.exit_code and not run.exists():
            raise NotRecorded(observed.reason)
    except subprocess.TimeoutExpired as late:
        raise NotTrained(f"did not end in {late.timeout:.0f} s") from late
    yield from judge(case, traincope.analyze(traincope.open_run(run)), bare=bare, observed=observed)


def main(names: list[str]) -> int:
    chosen = [case for case in CASES if not names or any(map(case.is_called, names))]
    if not chosen:
        print(f"no program is named {', '.join(names)}; there are {', '.join(case.name for case in CASES)}")
        return 2
    return judge_all(chosen, PAGE)


def judge_all(chosen: Sequence[Case], path: Path) -> int:
    """Judge programs, and write their rows on a page. Returns the exit code."""
    all_rows: list[Row] = []
    failed: list[str] = []
    for case in chosen:
        print(case.name, file=sys.stderr, flush=True)
        of_case, failure = outcome(case)
        show(case, of_case, failure)
        failed += [case.name] if failure.startswith((DOES_NOT_RUN, FAILS_RECORDED)) else []
        page.write(path, case.name, of_case, failure=failure, versions=versions_of(case.package))
        all_rows += of_case
    missed = sum(not row.holds for row in all_rows)
    print(f"{len(all_rows)} rows of {len({row.case for row in all_rows})} programs; {missed} missed")
    if failed:
        print(f"did not run: {', '.join(failed)}")
    return int(missed > 0 or bool(failed))


def outcome(case: Case) -> tuple[list[Row], str]:
    """Return the rows of a program, or none and the reason."""
    with tempfile.TemporaryDirectory(prefix="frameworks-") as directory:
        try:
            return list(judged(case, Path(directory))), ""
        except NotInstalled as reason:
            return [], f"does not install: {reason}"
        except NotTrained as reason:
            return [], f"{DOES_NOT_RUN}: {reason}"
        except NotRecorded as reason:
            return [], f"{FAILS_RECORDED}: {reason}"


def show(case: Case, rows: list[Row], failure: str) -> None:
    table = Table(title=f"{case.name}{': ' if failure else ''}{failure}", title_justify="left", box=None)
    for head in ("what", "truth", "measured", ""):
        table.add_column(head)
    for row in rows:
        cells = row.quantity, row.truth, row.measured, "" if row.holds else "MISSED"
        table.add_row(*map(escape, cells), style=None if row.holds else "bold red")
    Console(width=170).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
