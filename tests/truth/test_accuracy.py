"""The table of accuracy marks a command that misses its limit or does not run."""

from pathlib import Path

import pytest

from tests.truth import accuracy

PROGRAM = "import sys; print('a table'); print('3 rows; {0} missed'); sys.exit({0})"


def write(directory: Path, name: str, text: str) -> str:
    (directory / f"{name}.py").write_text(text)
    return name


def test_the_table_is_written_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "accuracy.md"
    page.write_text("before\n" + accuracy.BEGIN + "old\n" + accuracy.END + "after\n")
    commands = (
        ("holds", "1 %", write(tmp_path, "holds", PROGRAM.format(0))),
        ("misses", "2 %", write(tmp_path, "misses", PROGRAM.format(1))),
        ("skips", "3 %", write(tmp_path, "skips", "print('2 skipped in 0.1s')")),
        ("says nothing", "4 %", write(tmp_path, "silent", "raise SystemExit(3)")),
    )
    monkeypatch.setattr(accuracy, "PAGE", page)
    monkeypatch.setattr(accuracy, "COMMANDS", commands)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert accuracy.main() == 0
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in lines if line.startswith("|")][2:]
    assert rows == [
        ["holds", "1 %", "3 rows; 0 missed"],
        ["misses", "2 %", "**MISSED**: 3 rows; 1 missed"],
        ["skips", "3 %", "**NOT RUN**: 2 skipped in 0.1s"],
        ["says nothing", "4 %", "**MISSED**: no output; it exited with 3"],
    ]


def test_the_page_has_the_rows_of_the_commands() -> None:
    text = accuracy.PAGE.read_text()
    assert text.count(accuracy.BEGIN) == text.count(accuracy.END) == 1
    rows = text.split(accuracy.BEGIN)[1].split(accuracy.END)[0].splitlines()[2:]
    shown = [[row.split("|")[column].strip(" `") for column in (1, 2, 4)] for row in rows]
    assert shown == [list(command) for command in accuracy.COMMANDS]
