"""What misses, or does not run, stands so in README's table of accuracy."""

from pathlib import Path

import pytest

from tests.truth import accuracy

SAYS = "import sys; print('a table'); print('3 rows; {0} missed'); sys.exit({0})"


def write(directory: Path, name: str, text: str) -> str:
    (directory / f"{name}.py").write_text(text)
    return name


def test_the_table_is_written_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("before\n" + accuracy.BEGIN + "old\n" + accuracy.END + "after\n")
    commands = (
        ("holds", "1 %", write(tmp_path, "holds", SAYS.format(0))),
        ("misses", "2 %", write(tmp_path, "misses", SAYS.format(1))),
        ("skips", "3 %", write(tmp_path, "skips", "print('2 skipped in 0.1s')")),
        ("says nothing", "4 %", write(tmp_path, "silent", "raise SystemExit(3)")),
    )
    monkeypatch.setattr(accuracy, "README", readme)
    monkeypatch.setattr(accuracy, "COMMANDS", commands)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert accuracy.main() == 0
    lines = readme.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    told = [[cell.strip() for cell in line.split("|")[1:4]] for line in lines if line.startswith("|")][2:]
    assert told == [
        ["holds", "1 %", "3 rows; 0 missed"],
        ["misses", "2 %", "**MISSED**: 3 rows; 1 missed"],
        ["skips", "3 %", "**NOT RUN**: 2 skipped in 0.1s"],
        ["says nothing", "4 %", "**MISSED**: nothing; it exited with 3"],
    ]


def test_readme_has_a_place_for_it() -> None:
    text = accuracy.README.read_text()
    assert text.count(accuracy.BEGIN) == text.count(accuracy.END) == 1
