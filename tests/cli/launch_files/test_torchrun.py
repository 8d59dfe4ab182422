"""The script for torchrun, really run: a training on one host, and a hot spare that replaces a killed host."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import traincope
from tests.cli.launch_files.emitted import emitted, write_inputs
from tests.cli.test_commands import ENVIRONMENT
from tests.live.processes import until
from tests.ports import free_port
from traincope.engine.checkpoint.places.directory import complete_checkpoints

HOSTS_ENVIRONMENT = {**ENVIRONMENT, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.mark.sweep
def test_the_script_trains_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my disk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    text = emitted(write_inputs(folder), "torchrun", "--set", "parallel.dp=1", "--port", str(free_port()))
    ended = start(text, number=0, log=tmp_path / "log")
    assert ended.wait(150) == 0, (tmp_path / "log").read_text()
    assert [step["step"] for step in steps(tmp_path / "log")] == [1, 2, 3, 4]
    assert [path.name for path in complete_checkpoints(folder / "a run" / "checkpoints")] == [
        "step-00000004",
        "step-00000002",
    ]
    assert len(traincope.open_run(folder / "a run").ranks) == 1


@pytest.mark.sweep
def test_a_hot_spare_replaces_a_killed_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three hosts train. The second one and its rank are killed, and the spare takes its place."""
    monkeypatch.chdir(tmp_path)
    words = ("--spare-nodes", "1", "--max-restarts", "3", "--port", str(free_port()), "--set", "train.steps=2000")
    text = emitted(write_inputs(tmp_path), "torchrun", *words, "--set", "checkpoint.every=50")
    logs = [tmp_path / f"log-{number}" for number in range(3)]
    hosts = [start(text, number=number, log=logs[number]) for number in range(2)]
    saved = tmp_path / "a run" / "checkpoints"
    until(lambda: saved.is_dir() and any(saved.glob("step-*")), "the first checkpoint")
    hosts.append(start(text, number=2, log=logs[2]))
    time.sleep(3)
    lose(1, tmp_path)
    hosts[1].wait(60)
    try:
        assert (hosts[0].wait(180), hosts[2].wait(60)) == (0, 0), [log.read_text() for log in logs]
    finally:
        for number in (0, 2):
            lose(number, tmp_path)
    trained = [step["step"] for log in logs for step in steps(log)]
    assert set(trained) == set(range(1, 2001))
    attempts = list((tmp_path / "a run").glob("attempt-*"))
    assert len(attempts) >= 2
    assert len(trained) - len(set(trained)) <= 50 * (len(attempts) - 1)


def start(text: str, *, number: int, log: Path) -> "subprocess.Popen[bytes]":
    environment = {**HOSTS_ENVIRONMENT, "MASTER_ADDR": "localhost", "NODE_RANK": str(number), "PWD": str(Path.cwd())}
    with log.open("wb") as file:
        command = ["bash", "-c", text]
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)


def lose(number: int, folder: Path) -> None:
    """Kill all processes of a host at once: its torchrun and its ranks are in sessions of their own."""
    variables = {f"NODE_RANK={number}".encode(), f"PWD={folder}".encode()}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variables <= set((process / "environ").read_bytes().split(b"\0")):
                os.kill(int(process.name), signal.SIGKILL)


def steps(log: Path) -> list[dict[str, int]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"attempt"')]
