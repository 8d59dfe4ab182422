"""SIGKILL at random instants of a process that writes, commits, removes or uploads checkpoints.

`make test-kill` takes 200, and 50 of uploads.
"""

import os
import subprocess
import sys
from pathlib import Path

INSTANTS = int(os.environ.get("TRAINCOPE_KILLS", "40"))


def test_after_a_kill_the_committed_checkpoints_are_whole(tmp_path: Path) -> None:
    assert_survives("killed_writer", tmp_path / "c", INSTANTS)


def test_after_a_kill_the_uploaded_checkpoints_are_whole(tmp_path: Path) -> None:
    assert_survives("killed_uploader", tmp_path, INSTANTS // 4)


def assert_survives(module: str, directory: Path, instants: int) -> None:
    command = [sys.executable, "-m", f"tests.engine.checkpoint.{module}", str(directory), str(instants)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
