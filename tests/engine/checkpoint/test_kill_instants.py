"""SIGKILL at random instants of a process that writes, commits and removes checkpoints. `make test-kill` takes 200."""

import os
import subprocess
import sys
from pathlib import Path

INSTANTS = int(os.environ.get("TRAINCOPE_KILLS", "40"))


def test_after_a_kill_the_committed_checkpoints_are_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.engine.checkpoint.killed_writer", str(tmp_path / "c"), str(INSTANTS)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
