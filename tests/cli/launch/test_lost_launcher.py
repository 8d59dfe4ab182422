"""A launcher that is killed or interrupted takes torchrun and all ranks with it, and Ctrl-C leaves one line."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.launch.test_child import heed
from tests.cli.launch.test_restarts import CONFIG
from tests.live.processes import until
from traincope.cli.main import INTERRUPTED
from traincope.engine.checkpoint.places.directory import complete_checkpoints, step_of
from traincope.engine.launch import TORCHRUN, WORKER
from traincope.store.job.launcher import notes_path, read_notes

STEPS = 100_000


def started(directory: Path, *words: str, session: bool = False) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "traincope.cli.main", "train", str(directory / "config.toml"), "--out"]
    return subprocess.Popen(
        [*command, str(directory / "run"), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ,
        start_new_session=session,
        preexec_fn=heed,
    )


@pytest.mark.sweep
@pytest.mark.parametrize("gets_it", [os.killpg, os.kill], ids=["all processes", "the command alone"])
def test_ctrl_c_ends_the_demo_of_rollouts_with_one_line(tmp_path: Path, gets_it: Callable[[int, int], None]) -> None:
    command = [sys.executable, "-m", "traincope.cli.main", "demo", "--rl", "--steps", str(STEPS), "--out"]
    demo = subprocess.Popen(
        [*command, str(tmp_path / "run")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=heed,
    )
    until(lambda: bool(list(tmp_path.glob("run/attempt-*/rank-*1/*"))), "records of rank 1")
    gets_it(demo.pid, signal.SIGINT)
    _, errors = demo.communicate()
    assert errors.decode() == f"traincope demo: stopped by you, with Ctrl-C; recorded in {tmp_path / 'run'}\n"
    assert demo.returncode == INTERRUPTED
    (stopped,) = [note for note in read_notes(notes_path(tmp_path / "run")) if note.rank is None]
    assert stopped.exit_code == -signal.SIGINT


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


def ignores(pid: int, number: signal.Signals) -> bool:
    (mask,) = re.findall(r"^SigIgn:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return bool(int(mask, 16) >> (number - 1) & 1)


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


@pytest.mark.parametrize("gets_it", [os.killpg, os.kill], ids=["all processes", "the launcher alone"])
def test_ctrl_c_ends_the_training_with_one_line(tmp_path: Path, gets_it: Callable[[int, int], None]) -> None:
    """A terminal sends it to all processes at once; torchrun and ranks would print a traceback each."""
    (tmp_path / "text").write_text("\n".join(f"{n} squared is {n * n}" for n in range(200)))
    (tmp_path / "config.toml").write_text(CONFIG.format(text=tmp_path / "text"))
    launcher = started(tmp_path, "--set", f"train.steps={STEPS}", session=True)
    until(lambda: bool(complete_checkpoints(tmp_path / "run" / "checkpoints")), "the first checkpoint")
    assert all(ignores(pid, signal.SIGINT) for pid in processes(tmp_path)[WORKER])
    gets_it(launcher.pid, signal.SIGINT)
    _, errors = launcher.communicate()
    assert errors.decode() == f"traincope train: stopped by you, with Ctrl-C; recorded in {tmp_path / 'run'}\n"
    assert launcher.returncode == INTERRUPTED
    until(lambda: not any(processes(tmp_path).values()), "the end of all processes")
    (stopped,) = read_notes(notes_path(tmp_path / "run"))
    assert (stopped.rank, stopped.exit_code) == (None, -signal.SIGINT)
