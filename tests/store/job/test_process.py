"""State of a rank's process, known only on its own host, boot and container."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.live.processes import until
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


WAITS = {
    "a lock that nothing releases": ("lock.acquire()", True),
    "a lock with a time limit": ("lock.acquire(timeout=100)", False),
    "a sleep": ("time.sleep(100)", False),
    "a child process": ("subprocess.run(['sleep', '100'])", False),
    "a thread that sleeps": ("start(time.sleep, 100).join()", False),
    "a thread at the same lock": ("start(lock.acquire); lock.acquire()", True),
    "a lock, next to a thread that wakes up by itself": ("start(time.sleep, 100); lock.acquire()", False),
    "a lock, next to a thread of the recorder": ("start(watch); lock.acquire()", True),
    "a lock, with an alarm": ("signal.signal(signal.SIGALRM, print); signal.alarm(100); lock.acquire()", False),
    "a lock of several processes": ("shared = multiprocessing.Lock(); shared.acquire(); shared.acquire()", False),
}
WAITING = """
import multiprocessing, signal, subprocess, sys, threading, time
from traincope.store.job.process import name_this_thread
def start(*call):
    thread = threading.Thread(target=call[0], args=call[1:], daemon=True)
    thread.start()
    return thread
def watch():
    name_this_thread()
    time.sleep(100)
lock = threading.Lock()
lock.acquire()
print("ready", flush=True)
"""


@pytest.mark.parametrize(("wait", "locked"), WAITS.values(), ids=WAITS)
def test_only_a_process_all_of_whose_threads_wait_for_locks_cannot_go_on(wait: str, *, locked: bool) -> None:
    command = [sys.executable, "-c", WAITING + wait]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as waiting:
        try:
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "ready\n"
            process = Process.of(waiting.pid)
            assert process is not None
            until(lambda: process.wait_channel() not in ("", "0"), "the wait")
            if locked:
                until(process.is_locked, "all threads to wait")
            assert process.is_locked() is locked
        finally:
            os.killpg(waiting.pid, signal.SIGKILL)
