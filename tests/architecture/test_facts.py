"""Facts that the pages state are those of the code."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.truth.layouts.trainings import PREDICTED
from tests.truth.machines.clocks import TRIALS
from tests.truth.memory.cases import CASES
from tests.truth.pipelines.bubble import cases
from traincope.analysis import confidence
from traincope.analysis.diff.diff import DEFAULT_THRESHOLD_RATIO, LEVEL
from traincope.analysis.diff.significance import BLOCKS, MIN_BLOCK_STEPS
from traincope.errors import REGRESSION
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
