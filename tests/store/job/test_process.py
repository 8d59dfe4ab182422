"""State of a rank's process, known only on its own host, boot and container."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from traincope.store.job.process import Process

OWN = "import json, sys; from traincope.store.job.process import Process; "
OWN += "print(json.dumps(Process.this().as_json()), flush=True); sys.stdin.read()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", OWN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def as_written(child: subprocess.Popen[str]) -> Process:
    assert child.stdout is not None
    process = Process.read(json.loads(child.stdout.readline()))
    assert process is not None
    return process


def this() -> Process:
    process = Process.this()
    assert process is not None
    return process


def test_a_process_runs_until_it_is_killed(child: subprocess.Popen[str]) -> None:
    """A stopped process counts as running; a zombie does not."""
    process = as_written(child)
    assert process.pid == child.pid
    assert process.is_running() is True
    child.send_signal(signal.SIGSTOP)
    assert process.is_running() is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.is_running() is False
    child.wait()
    assert process.is_running() is False


def test_another_process_with_the_same_pid_is_different() -> None:
    assert replace(this(), started_ticks=this().started_ticks - 1).is_running() is False


@pytest.mark.parametrize("change", [{"boot_id": "another"}, {"pid_namespace": 1}])
def test_another_boot_or_container_is_unknown(change: dict[str, object]) -> None:
    assert replace(this(), **change, pid=2**22 + 1).is_running() is None  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", [None, [], {}, {"pid": "7"}, {**this().as_json(), "boot_id": 1}])
def test_a_damaged_or_missing_process_is_none(raw: object) -> None:
    assert Process.read(raw) is None
