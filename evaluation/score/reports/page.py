"""The table of `docs/develop/report-score.md`: every program with its truth, its first finding and both grades."""

import json
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from evaluation.score.reports.grading import PARTLY, RIGHT, UNKNOWN, WRONG
from evaluation.score.reports.running import Outcome
from evaluation.score.reports.truths import Truth, truths
from evaluation.written import written_table

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "develop" / "report-score.md"
FIRST = Path(__file__).with_name("first_score.json")
"""Trials: the grades of programs in their first run, with its commit and date."""
FINDING_WORDS = 5
COUNTS = ("|score|commit|right|partly|unknown|wrong|", "|---|---|---|---|---|---|")


def lines(chosen: Sequence[Truth], outcomes: Sequence[Outcome], measured: str) -> Iterator[str]:
    first = first_grades()
    final = {outcome.name: outcome.grade.split(":")[0] for outcome in outcomes}
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    yield f"Commit {measured}, {date.today().isoformat()}: {versions}."
    yield ""
    yield from COUNTS
    for trial in trials():
        yield _counts(f"first, {trial['date']}", trial)
    yield _counts("this one", {"commit": measured, "grades": final})
    yield ""
    yield "|program, report|item|ranks|truth|first finding|first grade|grade|"
    yield "|---|---|---|---|---|---|---|"
    for truth, outcome in zip(chosen, outcomes, strict=True):
        began = first.get(truth.name, "")
        cells = (
            _title(truth),
            truth.item,
            truth.nproc,
            truth.truth,
            _short(outcome.finding),
            began,
            _marked(final[truth.name]),
        )
        yield "|" + "|".join(str(cell).replace("|", " or ") for cell in cells) + "|"


def trials() -> list[dict[str, Any]]:
    """First runs, the earliest first: `commit`, `date`, and `grades` by the names of programs."""
    return list(json.loads(FIRST.read_text()))


def first_grades() -> dict[str, str]:
    return {name: grade for trial in trials() for name, grade in trial["grades"].items()}


def add_trial(outcomes: Sequence[Outcome], measured: str) -> None:
    """Keep these as the first runs of their programs. A program's first run stays its first."""
    known = first_grades()
    grades = {each.name: each.grade.split(":")[0] for each in outcomes if each.name not in known}
    kept = [*trials(), {"commit": measured, "date": date.today().isoformat(), "grades": grades}]
    FIRST.write_text(json.dumps(kept, indent=1) + "\n")


def trial_lines() -> Iterator[str]:
    """Lines of the page: the programs that the score does not have yet, and how each was graded in its first run."""
    score = "\n".join(written_table(PAGE, "report-score"))
    new = {truth.name: truth for truth in truths() if f"|{_title(truth)}|" not in score}
    yield from COUNTS
    for trial in trials():
        if new.keys() & trial["grades"]:
            yield _counts(f"first, {trial['date']}", trial)
    yield ""
    yield "|program, report|item|ranks|trial|first grade|"
    yield "|---|---|---|---|---|"
    for trial in trials():
        for name in [name for name in new if name in trial["grades"]]:
            truth = new[name]
            cells = (_title(truth), truth.item, truth.nproc, trial["commit"], _marked(trial["grades"][name]))
            yield "|" + "|".join(map(str, cells)) + "|"


def _counts(title: str, score: Mapping[str, Any]) -> str:
    counts = Counter(score["grades"].values())
    numbers = "|".join(str(counts[grade]) for grade in (RIGHT, PARTLY, UNKNOWN, WRONG))
    return f"|{title}|{score['commit']}|{numbers}|"


def _title(truth: Truth) -> str:
    return truth.name.replace("_", " ") + (f" {_link(truth.thread)}" if truth.thread else "")


def _link(thread: str) -> str:
    name, _, number = thread.partition("#")
    return f"[{name.split('/')[-1]}#{number}](https://github.com/{name}/issues/{number})"


def _short(finding: str) -> str:
    """The first words of a finding. Files of programs are not named: the page is not next to them."""
    words = re.sub(r"[\w./-]+\.(py|toml)\b(:\d+)?", "the program", finding.replace("_", " ")).split()
    return " ".join(words[:FINDING_WORDS]) + (" ..." if len(words) > FINDING_WORDS else "")


def _marked(grade: str) -> str:
    return f"**{grade}**" if grade == WRONG else grade
