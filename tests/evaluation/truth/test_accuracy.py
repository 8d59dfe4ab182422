"""The table of accuracy is of one commit, and marks a command that misses its limit or does not run."""

import subprocess
from pathlib import Path

import pytest

from evaluation.truth import accuracy
from evaluation.written import EditedError, write_table, written_table

PROGRAM = "import sys; print('a table'); print('3 rows; {0} missed'); sys.exit({0})"
PAGE = "before\n<!-- accuracy: old -->\nold\n<!-- /accuracy -->\nafter\n"


def git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a page and four commands."""
    programs = {
        "holds": PROGRAM.format(0),
        "misses": PROGRAM.format(1),
        "skips": "print('2 skipped in 0.1s')",
        "silent": "raise SystemExit(3)",
        "noisy": "print('3 rows; 1 times not shown; 0 missed'); raise SystemExit(4)",
    }
    for name, text in programs.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / ".gitignore").write_text("__pycache__\nkept\n")
    page = tmp_path / "accuracy.md"
    page.write_text(PAGE)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "all")
    monkeypatch.setattr(accuracy, "PAGE", page)
    monkeypatch.setattr(accuracy, "ROOT", tmp_path)
    monkeypatch.setattr(accuracy, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(accuracy, "COMMANDS", tuple((name, "1 %", name) for name in programs))
    return page


def test_all_rows_of_a_commit_are_written_between_the_marks(page: Path) -> None:
    assert accuracy.main() == 1
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    table = written_table(page, "accuracy")
    assert table[0].startswith(f"Commit {git(page.parent, 'rev-parse', '--short=10', 'HEAD')}, ")
    assert [line.split("|")[3].strip() for line in table[4:]] == [
        "3 rows; 0 missed",
        "**MISSED**: 3 rows; 1 missed",
        "**NOT RUN**: 2 skipped in 0.1s",
        "**MISSED**: no output; it exited with 3",
        "**NOT SHOWN**: 3 rows; 1 times not shown; 0 missed",
    ]
    (printed,) = (page.parent / "kept").glob("misses-*.txt")
    assert printed.read_text() == "a table\n3 rows; 1 missed\n"


def test_an_interrupted_run_goes_on_and_runs_no_row_twice(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row that missed stays, whatever it would be now. Another commit begins anew."""
    holds, misses, *_ = accuracy.COMMANDS
    monkeypatch.setattr(accuracy, "COMMANDS", (misses,))
    assert accuracy.main() == 1
    (rows,) = (page.parent / "kept").glob("*.jsonl")
    rows.write_text(rows.read_text().replace("1 missed", "1 missed, as kept"))
    monkeypatch.setattr(accuracy, "COMMANDS", (holds, misses))
    assert accuracy.main() == 1
    table = written_table(page, "accuracy")
    assert [line.split("|")[3].strip() for line in table[4:]] == [
        "3 rows; 0 missed",
        "**MISSED**: 3 rows; 1 missed, as kept",
    ]
    git(page.parent, "commit", "-qam", "the table")
    monkeypatch.setattr(accuracy, "COMMANDS", (misses,))
    assert accuracy.main() == 1
    assert "as kept" not in page.read_text()


def test_every_command_that_sleeps_has_a_row() -> None:
    assert {module for _, _, module in accuracy.COMMANDS} >= {*accuracy.ASLEEP}


def test_nothing_is_written_for_code_that_is_not_a_commit(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (page.parent / "holds.py").write_text("print('better')")
    assert accuracy.main() == 2
    assert page.read_text() == PAGE
    assert "holds.py" in capsys.readouterr().err


def test_nothing_is_written_if_the_code_changes_meanwhile(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changing = page.parent / "changing.py"
    changing.write_text("open('holds.py', 'a').write('#')")
    git(page.parent, "add", "-A")
    git(page.parent, "commit", "-qm", "changes itself")
    monkeypatch.setattr(accuracy, "COMMANDS", (("changes", "1 %", "changing"),))
    assert accuracy.main() == 2
    assert page.read_text() == PAGE


def test_a_written_table_that_is_edited_is_refused(page: Path) -> None:
    write_table(page, "accuracy", ["| a | 1 |", "| b | 2 |"], by="a command")
    assert written_table(page, "accuracy") == ["| a | 1 |", "| b | 2 |"]
    page.write_text(page.read_text().replace("| b | 2 |", "| b | 1 |"))
    with pytest.raises(EditedError):
        written_table(page, "accuracy")


def test_the_page_has_the_rows_of_the_commands() -> None:
    table = written_table(accuracy.PAGE, "accuracy")
    rows = [[line.split("|")[column].strip(" `") for column in (1, 2, 4)] for line in table if line.startswith("| ")]
    assert rows[1:] == [list(command) for command in accuracy.COMMANDS]
