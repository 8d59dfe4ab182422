"""The launcher's notes are read back, and a torn or foreign line costs only itself."""

from pathlib import Path

import pytest

from traincope.record.checkpoints import SAVED
from traincope.store import attempts
from traincope.store.launcher import LauncherNote, append_notes, notes_of, read_notes

KILLED = LauncherNote(attempt=0, rank=2, exit_code=-9, first=True, at_wall_ns=7_000_000_000)
STOPPED = LauncherNote(attempt=1, rank=None, exit_code=-15, first=True, at_wall_ns=8)


def test_notes_are_appended_and_read_in_order(tmp_path: Path) -> None:
    path = notes_of(tmp_path / "run")
    assert read_notes(path) == ()
    append_notes(path, [KILLED])
    append_notes(path, [STOPPED])
    assert path.name == "launcher.jsonl"
    assert read_notes(path) == (KILLED, STOPPED)


def test_without_notes_no_file_is_made(tmp_path: Path) -> None:
    append_notes(notes_of(tmp_path / "run"), [])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("line", ['{"attempt": 0, "ra', "[]", '{"rank": 1}', '{"attempt": "x", "exit_code": 1}', ""])
def test_a_line_that_is_no_note_is_left_out(tmp_path: Path, line: str) -> None:
    path = notes_of(tmp_path)
    append_notes(path, [KILLED])
    path.write_text(f"{line}\n{path.read_text()}")
    assert read_notes(path) == (KILLED,)


def test_reader_and_recorder_call_a_saved_checkpoint_by_one_name() -> None:
    assert attempts.SAVED == SAVED
