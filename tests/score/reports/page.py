"""The table of `docs/report-score.md`: every program with its truth, its first finding and both grades."""

import json
import platform
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import torch

from tests.score.reports.grading import PARTLY, RIGHT, UNKNOWN, WRONG
from tests.score.reports.running import Outcome
from tests.score.reports.truths import Truth

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "report-score.md"
FIRST = Path(__file__).with_name("first_score.json")
"""Grades of each program's first run, with its commit and date."""
FINDING_WORDS = 7


def lines(chosen: Sequence[Truth], outcomes: Sequence[Outcome], measured: str) -> Iterator[str]:
    first = json.loads(FIRST.read_text())
    final = {outcome.name: outcome.grade.split(":")[0] for outcome in outcomes}
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    yield f"Commit {measured}, {date.today().isoformat()}: {versions}. The first score is of {first['date']}."
    yield ""
    yield "|score|commit|right|partly|unknown|wrong|"
    yield "|---|---|---|---|---|---|"
    yield _counts("first", first["commit"], {name: first["grades"].get(name, "") for name in final})
    yield _counts("this one", measured, final)
    yield ""
    yield "|program, report|item|ranks|truth|first finding|first grade|grade|"
    yield "|---|---|---|---|---|---|---|"
    for truth, outcome in zip(chosen, outcomes, strict=True):
        name = truth.name.replace("_", " ") + (f" {_link(truth.thread)}" if truth.thread else "")
        began = first["grades"].get(truth.name, "")
        cells = (name, truth.item, truth.nproc, truth.truth, _short(outcome.finding), began, _marked(final[truth.name]))
        yield "|" + "|".join(str(cell).replace("|", " or ") for cell in cells) + "|"


def _counts(title: str, measured: str, grades: dict[str, str]) -> str:
    counts = Counter(grades.values())
    return f"|{title}|{measured}|{'|'.join(str(counts[grade]) for grade in (RIGHT, PARTLY, UNKNOWN, WRONG))}|"


def _link(thread: str) -> str:
    name, _, number = thread.partition("#")
    return f"[{name.split('/')[-1]}#{number}](https://github.com/{name}/issues/{number})"


def _short(finding: str) -> str:
    """The first words of a finding. Files of programs are not named: the page is not next to them."""
    words = re.sub(r"[\w./-]+\.(py|toml)\b(:\d+)?", "the program", finding.replace("_", " ")).split()
    return " ".join(words[:FINDING_WORDS]) + (" ..." if len(words) > FINDING_WORDS else "")


def _marked(grade: str) -> str:
    return f"**{grade}**" if grade == WRONG else grade
