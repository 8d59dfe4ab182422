"""README, CONTRIBUTING and docs name files that exist, and README stays short."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
ROOMS = (".", "traincope", "dashboards/traincope_dashboards")
"""Folders from which the pages name files."""
NAMES = {
    path.name for folder in ("traincope", "tests", "evaluation", "benchmarks") for path in (ROOT / folder).rglob("*.py")
} | {"pyproject.toml"}
"""Names that a page may give alone, after a path."""
OF_THE_READER = "train.py"
MAX_README_WORDS = 900


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_files_named_in_a_page_exist(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"(?<![\w/.<>-])(?:[\w-]+/)*[\w-]+\.(?:py|toml)\b", text)
    folders = re.findall(r"\b(?:tests|evaluation|benchmarks)(?:/[\w-]+)+(?![\w/.-])", text)
    for name in {*named, *folders} - {OF_THE_READER}:
        assert name in NAMES or any(
            (room / name).exists() for room in (page.parent, *(ROOT / room for room in ROOMS))
        ), name


@pytest.mark.parametrize("page", [*PAGES, WORKFLOW], ids=lambda page: page.name)
def test_make_targets_named_in_a_page_exist(page: Path) -> None:
    named = re.findall(r"(?:`|run: |&& |^    +)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    targets = re.findall(r"^([a-z_/ -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(named) <= {name for line in targets for name in line.split()}


def test_the_page_of_the_architecture_has_all_packages_in_the_order_of_their_layers() -> None:
    page = (ROOT / "docs" / "develop" / "architecture.md").read_text()
    named = re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [re.findall(r"[\w.]+", layer) for layer in contracts[0]["layers"]]
    assert named == [package.removeprefix("traincope.") for layer in layers for package in layer]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= MAX_README_WORDS


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
