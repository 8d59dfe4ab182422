"""A launcher that is killed takes torchrun and all ranks with it, so that the training can be resumed at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.launch.test_restarts import CONFIG
from tests.live.processes import until
from traincope.engine.checkpoint.places.directory import complete_checkpoints, step_of
from traincope.engine.launch import TORCHRUN, WORKER
from traincope.store.job.launcher import notes_path, read_notes

STEPS = 100_000


def started(directory: Path, *words: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "traincope.cli.main", "train", directory / "config.toml", "--out"]
    return subprocess.Popen(
        [*command, directory / "run", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ
    )


def processes(directory: Path) -> dict[str, list[int]]:
    """Module -> the processes that run it for this test."""
    pids: dict[str, list[int]] = {TORCHRUN: [], WORKER: []}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if str(directory / "config.toml") in words and (runs := next(filter(words.__contains__, pids), None)):
            pids[runs].append(int(process.name))
    return pids


@pytest.mark.sweep
@pytest.mark.parametrize("killed", ["launcher", "torchrun"])
def test_no_rank_outlives_its_launcher_and_the_training_resumes(tmp_path: Path, killed: str) -> None:
    (tmp_path / "text").write_text("\n".join(f"{n} squared is {n * n}" for n in range(200)))
    (tmp_path / "config.toml").write_text(CONFIG.format(text=tmp_path / "text"))
    launcher = started(tmp_path, "--set", f"train.steps={STEPS}")
    saved = tmp_path / "run" / "checkpoints"
    until(lambda: bool(complete_checkpoints(saved)), "the first checkpoint")
    before = processes(tmp_path)
    assert {module: len(pids) for module, pids in before.items()} == {TORCHRUN: 1, WORKER: 2}
    os.kill(launcher.pid if killed == "launcher" else before[TORCHRUN][0], signal.SIGKILL)
    launcher.communicate()
    until(lambda: not any(processes(tmp_path).values()), "the end of all processes")
    newest = step_of(complete_checkpoints(saved)[0])
    resumed = started(tmp_path, "--resume", "--set", f"train.steps={newest + 2}")
    _, errors = resumed.communicate()
    assert resumed.returncode == 0, errors.decode()
    assert step_of(complete_checkpoints(saved)[0]) == newest + 2
    if killed == "launcher":
        (stopped,) = read_notes(notes_path(tmp_path / "run"))
        assert (stopped.rank, stopped.exit_code) == (None, -signal.SIGTERM)
