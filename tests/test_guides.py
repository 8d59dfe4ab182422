"""The guides: each begins with what a reader sees and ends with a command, and every command of them works.

Samples of the other pages are what their commands print.
"""

import json
import re
import shlex
from pathlib import Path

import pytest

from traincope.cli.main import main

ROOT = Path(__file__).parents[1]
GUIDES = sorted(path for path in (ROOT / "docs" / "guides").glob("*.md") if path.name != "README.md")
COMMAND = re.compile(r"^    (traincope .*)$", re.MULTILINE)
BLOCK = re.compile(r"(?:^    .*\n)+", re.MULTILINE)
SAMPLE = re.compile(r"^```\n\$ (traincope (?:[^\n]*\\\n)*[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OTHERS = ("README.md", "check.md", "search.md", "what-if.md")
"""Pages of docs/plan with samples."""


def commands() -> list[str]:
    return list(dict.fromkeys(command for guide in GUIDES for command in COMMAND.findall(guide.read_text())))


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command)[1:])
    output = capsys.readouterr()
    assert (ended.value.code, output.err) == (0, "")
    return output.out


def samples() -> list[tuple[str, str]]:
    """Commands of pages, and the lines that the pages show of their output."""
    pages = [(ROOT / "docs" / "plan" / name).read_text() for name in OTHERS]
    found = [(each[1].replace("\\\n", " "), each[2]) for page in pages for each in SAMPLE.finditer(page)]
    assert len(found) == sum(page.count("\n$ traincope ") for page in pages)
    assert all(shown for _, shown in found)
    return found


@pytest.fixture(autouse=True)
def _repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize("command", commands())
def test_a_command_works_and_its_page_shows_its_output(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks that are not commands are lines of the output of the command before them."""
    output = printed(command, capsys)
    assert output
    for guide in GUIDES:
        latest = ""
        for block in BLOCK.findall(guide.read_text()):
            if COMMAND.match(block):
                latest = block.strip()
            elif latest == command:
                assert all(line.strip() in output for line in block.splitlines()), block


@pytest.mark.parametrize(("command", "shown"), samples(), ids=lambda text: " ".join(text.split()[:4]))
def test_a_sample_of_a_page_is_what_its_command_prints(
    command: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(shlex.split(command)[1:])
    printed_lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in shown.splitlines() if line not in (*printed_lines, "...", "    ...")] == []


def test_the_exercises_have_the_utilization_that_their_commands_predict(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "plan" / "exercises.md").read_text()
    searches = [command for command in COMMAND.findall(page) if " search " in command]
    answers = [json.loads(printed(f"{command} --top 1 --format json", capsys)) for command in searches]
    predicted = [f"{100 * answer['ranked'][0]['mfu']:.1f} %" for answer in answers]
    assert re.findall(r"\| (\S+ %) \|$", page, re.MULTILINE) == predicted


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_a_guide_begins_with_what_is_seen_and_ends_with_a_command(guide: Path) -> None:
    title, first, *_, last = guide.read_text().strip("\n").split("\n\n")
    assert title.startswith("# ")
    assert first.startswith("You see ")
    assert COMMAND.fullmatch(last)


def test_every_guide_is_in_the_table() -> None:
    table = (ROOT / "docs" / "guides" / "README.md").read_text()
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", table)) == {guide.name for guide in GUIDES}
