"""With `signal_stacks`, a signal leaves the stacks at that moment, and has the same effect as without the recorder."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.live.processes import WITHOUT_TORCH
from traincope.analysis.faults.stacks import shows_all_threads, training_thread

HANGING = f"""{WITHOUT_TORCH}
import os, signal, threading
import traincope

def wait_for_ever():
    open(sys.argv[2], "w").close()
    threading.Lock().acquire() and threading.Event().wait()

with traincope.run(sys.argv[1], signal_stacks=True) as run:
    run.step()  # a record; without one, whether a report is possible depends on a collection of garbage
    if len(sys.argv) > 3:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    wait_for_ever()
"""

FORKING = f"""{WITHOUT_TORCH}
import os, signal
import traincope

with traincope.run(sys.argv[1], signal_stacks=True) as run:
    run.step()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"x")
        signal.pause()
    os.read(read, 1)
    os.kill(child, signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == signal.SIGTERM
"""


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", HANGING, str(tmp_path / "run"), str(ready), *arguments]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True)
    while not ready.exists():
        assert process.poll() is None
        time.sleep(0.02)
    return process


def stacks(tmp_path: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (tmp_path / "run").rglob("signal-*.txt")}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_deadly_signal_kills_at_once_and_leaves_the_stacks(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path)
    process.send_signal(number)
    assert process.wait(timeout=90) == -number
    assert "wait_for_ever" in stacks(tmp_path)[f"signal-{number.name}.txt"]


def test_a_crash_leaves_the_stacks(tmp_path: Path) -> None:
    process = start(tmp_path)
    process.send_signal(signal.SIGSEGV)
    assert process.wait(timeout=90) == -signal.SIGSEGV
    fatal = stacks(tmp_path)["signal-fatal.txt"]
    assert fatal.startswith("Fatal Python error: Segmentation fault")
    assert "wait_for_ever" in fatal


def test_a_signal_handler_of_the_training_runs(tmp_path: Path) -> None:
    process = start(tmp_path, "own handler")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=90) == 5


def test_a_killed_child_leaves_no_evidence_against_the_rank(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(tmp_path / "run")]
    subprocess.run(command, check=True, timeout=90)
    assert stacks(tmp_path) == {}


BUSY = (
    WITHOUT_TORCH
    + """
import json, signal, threading, time
import traincope

def work(depth=40):
    while depth == 40:
        json.dumps([{"a": work(depth - 1)}], indent=1)
    return depth and work(depth - 1)

handled = []
signal.signal(signal.SIGUSR1, lambda *_: handled.append(None))
with traincope.run(sys.argv[1], signal_stacks=True) as run:
    run.step()
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    for number in range(1, 41):
        signal.raise_signal(signal.SIGUSR1)
        while len(handled) < number:
            time.sleep(0.001)
"""
)


def test_a_training_that_handles_a_signal_survives_it_while_its_threads_run(tmp_path: Path) -> None:
    """Only the main thread is read: frames of threads that run cannot be read without Python's lock."""
    command = [sys.executable, "-c", BUSY, str(tmp_path / "run")]
    assert subprocess.run(command, timeout=100).returncode == 0
    (text,) = stacks(tmp_path).values()
    assert text.count("Stack (most recent call first):") == 40
    assert text.count("in work") == 0
    assert (training_thread(text)[0].function, shows_all_threads(text)) == ("<module>", False)


CLOSING = f"""{WITHOUT_TORCH}
import os, signal
import traincope

handled = []
signal.signal(signal.SIGUSR1, lambda *_: handled.append(None))
with traincope.run(sys.argv[1], signal_stacks=len(sys.argv) > 3, agent=False) as run:
    run.step()
    os.closerange(3, 1024)
    files = [open(f"{{sys.argv[2]}}/{{number}}", "wb", buffering=0) for number in range(40)]
    import colorsys  # what is checked now and then is checked after an import
    run.step()
    signal.raise_signal(signal.SIGUSR1)
    run.step()
for file in files:
    file.write(b"whole")
print([len(handled), {{open(file.name, "rb").read() for file in files}}])
"""
"""A training that closes all descriptors that it does not know, and opens files of its own."""


@pytest.mark.parametrize("asked", [False, True])
def test_descriptors_that_the_training_closed_are_never_used_again(tmp_path: Path, asked: bool) -> None:
    files = tmp_path / "files"
    files.mkdir()
    command = [sys.executable, "-c", CLOSING, str(tmp_path / "run"), str(files), *(["asked"] if asked else [])]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    assert done.stdout == "[1, {b'whole'}]\n"
