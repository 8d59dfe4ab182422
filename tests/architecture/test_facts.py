"""Facts that the pages state are those of the code."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.gpu.test_operations import CALLS
from tests.truth.formulas import published
from tests.truth.formulas.trainings import trainings
from tests.truth.layouts.trainings import PREDICTED
from tests.truth.machines.clocks import TRIALS
from tests.truth.memory.cases import CASES
from tests.truth.pipelines.bubble import cases
from tests.truth.trainings.gains import CURES
from tests.truth.trainings.predicted import CHANGES
from tests.truth.trainings.what_if import QUESTIONS
from tests.truth.trainings.workloads import WORKLOADS
from traincope.analysis import confidence
from traincope.analysis.diff.diff import DEFAULT_THRESHOLD_RATIO, LEVEL
from traincope.analysis.diff.significance import BLOCKS, MIN_BLOCK_STEPS
from traincope.errors import (
    BROKEN_RULE,
    LEFT_OUT,
    REGRESSION,
    CheckpointError,
    HangError,
    MissingDependencyError,
    VersionError,
)
from traincope.events import BLOCK_STEPS
from traincope.record.session.sampling import FIRST_BLOCKS
from traincope.tables.faults import FAULTS_VIEW
from traincope_dashboards.boards import BOARDS
from traincope_dashboards.build import RULES, Settings, build

ROOT = Path(__file__).parents[2]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text()
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")))
}
WORDS = {"eight": 8}


def rules(kind: str) -> int:
    """Number of rules with this key in the built files."""
    files = [text for name, text in build(Settings()).items() if name.startswith(RULES)]
    groups = [group for text in files for group in (yaml.safe_load(text) or {}).get("groups", ())]
    return sum(kind in rule for group in groups for rule in group["rules"])


FACTS: dict[str, tuple[int, Callable[[], int]]] = {
    r"(\w+)(?: Grafana)? dashboards, \d+ recording rules": (3, lambda: len(BOARDS)),
    r"(\d+) recording rules\s+and": (3, lambda: rules("record")),
    r"recording rules\s+and\s+(\d+)\s+alerts": (3, lambda: rules("alert")),
    r"bubble of (\d+) real pipelines": (2, lambda: len(list(cases()))),
    r"of hosts in (\d+) simulated runs": (1, lambda: TRIALS),
    r"peak memory of (?:real ranks in )?(\d+) (?:real )?trainings": (2, lambda: len(CASES)),
    r"steps of (?:real trainings in )?(\d+) layouts": (2, lambda: len(PREDICTED)),
    r"`traincope diff`.*exits with code (\d+)|It\s+exits with code (\d+) if\s+there": (2, lambda: REGRESSION),
    r"[Rr]uns? of fewer than (\d+) steps|all of fewer than (\d+) steps": (3, lambda: BLOCKS * MIN_BLOCK_STEPS),
    r"cut into (\d+) blocks": (2, lambda: BLOCKS),
    r"evident at p <= 0\.0(\d)": (1, lambda: round(100 * LEVEL)),
    r"threshold: (\d+) % of a step": (1, lambda: round(100 * DEFAULT_THRESHOLD_RATIO)),
    r"(\d+) (?:published numbers|numbers that papers print)": (3, lambda: sum(row.printed for row in published.rows())),
    r"`make truth-bubble` measures (\d+) pipelines|`make truth-bubble` \((\d+) pipelines": (
        2,
        lambda: len(list(cases())),
    ),
    r"`make truth` \((\d+) trainings": (1, lambda: len(WORKLOADS)),
    r"if really made \((\d+) changes": (1, lambda: len(QUESTIONS)),
    r"fifth of the gain \((\d+) settings": (1, lambda: len(CHANGES)),
    r"gains of (\w+) changes": (1, lambda: len(CHANGES)),
    r"settings, (\d+) findings\)": (1, lambda: len(CURES)),
    r"(\d+) kinds of call over NCCL": (2, lambda: len(CALLS)),
    r"(?:After|blocks) \(?(\d+) steps|between steps, after (\d+) steps": (3, lambda: FIRST_BLOCKS * BLOCK_STEPS),
    r"job that hangs[^|\n]{,60}with exit code (\d+)": (4, lambda: HangError.exit_code),
    r"rest is imported, and the exit code is (\d+)": (1, lambda: LEFT_OUT),
    r"The exit code is (\d+) if a problem": (1, lambda: BROKEN_RULE),
    r"Errors of checkpoints have exit code (\d+)": (1, lambda: CheckpointError.exit_code),
    r"lacks its extra exits with code (\d+)": (1, lambda: MissingDependencyError.exit_code),
    r"refuses a newer format in one sentence, with exit\s+code (\d+)": (1, lambda: VersionError.exit_code),
    r"on (\d+) published trainings|step of (\d+)\s+(?:published trainings|trainings in the tables)": (
        3,
        lambda: len(list(trainings())),
    ),
}
"""What pages say -> at least as often, and its number by the code."""


@pytest.mark.parametrize("fact", FACTS)
def test_a_number_in_a_page_is_that_of_the_code(fact: str) -> None:
    times, number = FACTS[fact]
    stated = {name: found for name, text in PAGES.items() if (found := _numbers(fact, text))}
    assert sum(map(len, stated.values())) >= times
    assert {value for found in stated.values() for value in found} == {number()}, stated


def test_the_levels_of_confidence_are_those_of_the_code() -> None:
    levels = {value for name, value in vars(confidence).items() if name.isupper()}
    column = next(column for column in FAULTS_VIEW.columns if column.name == "confidence")
    assert set(re.findall(r"`(\w+)`", column.help)) == levels


def _numbers(fact: str, text: str) -> list[int]:
    words = [next(filter(None, found.groups())).lower() for found in re.finditer(fact, text)]
    return [WORDS[word] if word in WORDS else int(word) for word in words]
