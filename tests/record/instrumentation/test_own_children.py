"""Programs that the recorder starts: the training gets no signal, finds no child, and keeps its descriptors."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from traincope.record.instrumentation.own_children import WAIT_FOR_ALL_KINDS, start_program

SHOWS_ITSELF = """
import json, os, signal
opened = [number for number in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{number}")]
print(json.dumps({
    "descriptors": sorted(map(int, opened)),
    "names": sorted(os.environ),
    "has a session of its own": os.getsid(0) != SESSION and os.getpgrp() != GROUP,
    "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "third": os.read(3, 100).decode(),
}))
"""


def shown(*, environment: dict[str, str]) -> dict[str, object]:
    """What a program sees that this process starts with a pipe as its output, and one as its descriptor 3."""
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    third, text = os.pipe()
    os.write(text, b"hello")
    program = SHOWS_ITSELF.replace("SESSION", str(os.getsid(0))).replace("GROUP", str(os.getpgrp()))
    command = [sys.executable, "-I", "-S", "-c", program]
    number = start_program(command, environment=environment, descriptors={1: writing, 3: third})
    for descriptor in (writing, third, text):
        os.close(descriptor)
    with open(reading) as output:
        answer: dict[str, object] = json.loads(output.read())
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_PID, number, os.WEXITED | WAIT_FOR_ALL_KINDS)
    return answer


def test_a_program_has_what_it_was_given_and_nothing_else() -> None:
    answer = shown(environment={"ONLY": "this"})
    assert answer.pop("names") in (["ONLY"], ["LC_CTYPE", "ONLY"])  # Python sets it
    assert answer == {
        "descriptors": [1, 3],
        "has a session of its own": True,
        "blocked": 0,
        "third": "hello",
    }


def test_a_program_that_is_missing_raises_and_leaves_no_child() -> None:
    with pytest.raises(FileNotFoundError):
        start_program(["/nowhere/sh"], environment={}, descriptors={})
    script = """
import os
from traincope.record.instrumentation.own_children import WAIT_FOR_ALL_KINDS, start_program
for command in (["/nowhere/sh"], ["/bin/true"]):
    try:
        start_program(command, environment={}, descriptors={})
    except FileNotFoundError:
        pass
    try:
        print(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | WAIT_FOR_ALL_KINDS))
    except ChildProcessError:
        print("no child")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout == "no child\nno child\n"


def test_an_interpreter_that_checks_its_stack_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    with pytest.raises(OSError, match=r"from Python 3\.14"):
        start_program(["/bin/true"], environment={}, descriptors={})


def test_threads_collections_and_signals_go_on_meanwhile() -> None:
    """Many starts while other threads allocate, collect garbage and get signals: nothing is lost, nothing hangs."""
    script = Path(__file__).with_name("many_starts.py")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=250)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ended well\n", "")


def test_no_signal_is_blocked_afterwards() -> None:
    before, collects = signal.pthread_sigmask(signal.SIG_BLOCK, ()), gc.isenabled()
    start_program(["/bin/true"], environment={}, descriptors={})
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert gc.isenabled() is collects
    assert threading.main_thread().is_alive()
