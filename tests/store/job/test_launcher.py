"""Launcher notes are read back; incomplete or foreign lines are skipped."""

from pathlib import Path

import pytest

from traincope.store.job.launcher import LauncherNote, append_notes, notes_path, read_notes

KILLED = LauncherNote(attempt=0, rank=2, exit_code=-9, first=True, at_wall_ns=7_000_000_000)
STOPPED = LauncherNote(attempt=1, rank=None, exit_code=-15, first=True, at_wall_ns=8)


def test_notes_are_appended_and_read_in_order(tmp_path: Path) -> None:
    path = notes_path(tmp_path / "run")
    assert read_notes(path) == ()
    append_notes(path, [KILLED])
    append_notes(path, [STOPPED])
    assert path.name == "launcher.jsonl"
    assert read_notes(path) == (KILLED, STOPPED)


def test_without_notes_no_file_is_created(tmp_path: Path) -> None:
    append_notes(notes_path(tmp_path / "run"), [])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("line", ['{"attempt": 0, "ra', "[]", '{"rank": 1}', '{"attempt": "x", "exit_code": 1}', ""])
def test_an_invalid_line_is_left_out(tmp_path: Path, line: str) -> None:
    path = notes_path(tmp_path)
    append_notes(path, [KILLED])
    path.write_text(f"{line}\n{path.read_text()}")
    assert read_notes(path) == (KILLED,)
