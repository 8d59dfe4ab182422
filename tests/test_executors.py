"""Work alongside a block: it sees the block's memory, gets its value, and its failures reach the block.

Each case runs in a process of its own, because only a process without other threads forks.
"""

import subprocess
import sys

HEAD = """
import os, signal, sys
from pathlib import Path
from traincope.errors import DataError
from traincope.executors import alongside, start_method

assert start_method() == "fork"
own, big = os.getpid(), list(range(1000))
"""


def output_of(body: str, *, stderr: str = "") -> list[str]:
    ran = subprocess.run([sys.executable, "-c", HEAD + body], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stderr.endswith(stderr) if stderr else not ran.stderr
    return ran.stdout.splitlines()


def test_work_runs_in_another_process_and_ends_with_the_blocks_value() -> None:
    body = """
def work(value):
    print(os.getpid() != own, sum(big), value(), flush=True)

with alongside(work) as complete:
    complete("a late value")
print("after")
"""
    assert output_of(body) == ["True 499500 a late value", "after"]


def test_an_error_of_the_work_is_raised_in_the_block() -> None:
    body = """
def late(value):
    value()
    open("/nowhere/late")

def early(value):
    open("/nowhere/early")

for work in (late, early):
    try:
        with alongside(work) as complete:
            complete("x" * 10_000_000)
    except FileNotFoundError as error:
        print(error.filename)
"""
    assert output_of(body) == ["/nowhere/late", "/nowhere/early"]


def test_the_call_raises_what_ended_the_work_before_it() -> None:
    """The value cannot be sent any more, whatever its size, and the error is that of the work."""
    body = """
import errno, time
from traincope.errors import RunDirectoryError, TraincopeError

def full(value):
    raise OSError(errno.ENOSPC, "No space left on device", "/x")

def damaged(value):
    raise RunDirectoryError("the run is damaged")

def short(value):
    raise MemoryError

def die(value):
    os.kill(os.getpid(), signal.SIGKILL)

for work in (full, damaged, short, die):
    for size in (10, 5_000_000):
        try:
            with alongside(work) as complete:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                complete("x" * size)
                print("the block went on" if size > 10 else "", end="")
        except (OSError, TraincopeError) as error:
            print(type(error).__name__, error)
"""
    expected = [
        "OSError [Errno 28] No space left on device: '/x'",
        "RunDirectoryError the run is damaged",
        "DataError a process that worked on the run ran out of memory; read it where more is free",
        "DataError a process that worked on the run was killed, perhaps because memory ran out",
    ]
    assert output_of(body) == [line for line in expected for _ in range(2)]


def test_ctrl_c_ends_the_work_without_a_traceback_and_a_bug_with_one() -> None:
    """A terminal sends Ctrl-C to all processes of a command."""
    body = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it

def interrupted(value):
    os.kill(os.getpid(), signal.SIGINT)
    value()

def wrong(value):
    raise AssertionError("a bug")

for work in WORK:
    try:
        with alongside(work) as complete:
            complete("value")
    except DataError as error:
        print(error)
"""
    sentence = "a process that worked on the run {}"
    assert output_of(body.replace("WORK", "[interrupted]")) == [sentence.format("was interrupted")]
    lines = output_of(body.replace("WORK", "[wrong]"), stderr="\nAssertionError: a bug\n")
    assert lines == [sentence.format("failed; its traceback is above")]


def test_a_killed_process_and_a_failed_block_raise_different_errors() -> None:
    body = """
def die(value):
    os.kill(os.getpid(), signal.SIGKILL)

def wait(value):
    value()

try:
    with alongside(die) as complete:
        pass
except DataError as error:
    print(error)
try:
    with alongside(wait):
        raise ValueError("the block's own")
except ValueError as error:
    print(error)
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print("no process is left")
"""
    assert output_of(body) == [
        "a process that worked on the run was killed, perhaps because memory ran out",
        "the block's own",
        "no process is left",
    ]


def test_a_process_with_threads_does_the_work_itself_when_the_value_is_there() -> None:
    body = """
import threading
stop = threading.Event()
threading.Thread(target=stop.wait, daemon=True).start()

def work(value):
    print(os.getpid() == own, value())

with alongside(work) as complete:
    print("first")
    complete("second")
stop.set()
"""
    assert output_of(body) == ["first", "True second"]
