"""Stacks of a rank that cannot answer, read from outside: it gets no signal, and goes on as it would alone."""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.processes import WITHOUT_TORCH, until
from tests.live.recorded import rank_of
from traincope.analysis.faults.stacks import holds_lock, training_thread
from traincope.cli.commands.hang import HangCommand
from traincope.live.node.noticing.looking import Subject, look_at_ranks
from traincope.store.job import outside_stacks
from traincope.store.job.manifests import read_rank_info
from traincope.store.job.outside_stacks import NOT_INSTALLED, find_py_spy, read_standing
from traincope.store.job.process import Process

HOLDING = f"""{WITHOUT_TORCH}
import ctypes
from pathlib import Path
import traincope

def hold():
    ctypes.PyDLL(None).sleep(1_000_000)
    Path(sys.argv[2]).touch()

with traincope.run(sys.argv[1], agent=False) as run:
    run.step()
    hold()
"""
"""A rank in a sleep of C that holds Python's lock. A signal with a handler ends the sleep."""
HOLDING_LINE = 1 + HOLDING.split("\n").index("    ctypes.PyDLL(None).sleep(1_000_000)")
PYTHON = sys.executable
WITHOUT_PTRACE = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
LOOKING = """
import sys
from pathlib import Path
from traincope.cli.commands.hang import HangCommand
from traincope.live.node.noticing.looking import Subject, look_at_ranks
from traincope.store.job.manifests import read_rank_info
directory = Path(sys.argv[1])
(look,) = look_at_ranks([Subject(directory=directory, info=read_rank_info(directory))], with_stacks=True).values()
print([look.stack, look.no_stack, look.state])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    pid: int
    woken: Path
    """Exists once the sleep has ended."""
    subject: Subject


@pytest.fixture(scope="module")
def holding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holding]:
    with held(tmp_path_factory.mktemp("holding")) as started:
        yield started


@contextmanager
def held(folder: Path, **variables: str) -> Iterator[Holding]:
    """Start a rank, and wait for its sleep."""
    command = [PYTHON, "-c", HOLDING, folder / "run", folder / "woken"]
    with subprocess.Popen(command, env={**os.environ, "RANK": "0", "WORLD_SIZE": "1", **variables}) as process:
        try:
            directory = rank_of(folder / "run")
            seen = Process.of(process.pid)
            assert seen is not None
            until(lambda: (directory / "rank.json").exists() and "nanosleep" in seen.wait_channel(), "its sleep")
            subject = Subject(directory=directory, info=read_rank_info(directory))
            yield Holding(pid=process.pid, woken=folder / "woken", subject=subject)
        finally:
            process.kill()


def test_a_rank_that_holds_pythons_lock_is_read_and_its_sleep_goes_on(holding: Holding) -> None:
    (look,) = look_at_ranks([holding.subject], with_stacks=True).values()
    innermost = training_thread(look.stack)[0]
    assert (innermost.function, innermost.line) == ("hold", HOLDING_LINE)
    assert holds_lock(look.stack)
    assert (look.no_stack, look.state, look.wait_channel) == ("", "S", "hrtimer_nanosleep")
    assert look.system_call.isdecimal()
    assert look.cpu_ns is not None
    seen = Process.of(holding.pid)
    assert seen is not None
    assert "nanosleep" in seen.wait_channel()
    assert not holding.woken.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can take a capability away")
def test_without_the_right_to_read_it_the_reason_and_the_remedy_are_known(holding: Holding) -> None:
    command = [*WITHOUT_PTRACE, sys.executable, "-c", LOOKING, holding.subject.directory]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("['', \"py-spy may not read the processes; run this command as the job's user or as")
    assert done.stdout.endswith("agent that the job started)\", 'S']\n")
    assert not holding.woken.exists()


def test_without_py_spy_the_reason_says_what_to_install(holding: Holding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (look,) = look_at_ranks([holding.subject], with_stacks=True).values()
    assert (look.stack, look.no_stack) == ("", NOT_INSTALLED)


def test_only_who_asks_for_the_signal_sends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its handler writes the stacks, and it ends the sleep."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    with held(tmp_path, TRAINCOPE_SIGNAL_STACKS="on") as started:
        look_at_ranks([started.subject], with_stacks=True)
        assert not started.woken.exists()
        (look,) = look_at_ranks([started.subject], with_stacks=True, by_signal=True).values()
        assert training_thread(look.stack)[0].function == "hold"
        until(started.woken.exists, "the end of the sleep")


def test_the_signal_is_an_option_of_its_own() -> None:
    parser = argparse.ArgumentParser()
    HangCommand().add_arguments(parser)
    given = [["run"], ["--stacks", "run"], ["run", "--stacks=signal"]]
    assert [parser.parse_args(words).stacks for words in given] == [None, "asked", "signal"]


MANY = 300
MOVING = "def move():\n" + " x = 1\n" * MANY + "def main():\n while True:\n" + "  move()\n" * MANY + "main()\n"
"""A process that is at another one of 90,000 pairs of lines whenever it is read."""


def test_a_stack_that_two_readings_do_not_agree_on_is_discarded(tmp_path: Path) -> None:
    script = tmp_path / "moving.py"
    script.write_text(MOVING)
    py_spy = find_py_spy()
    assert py_spy is not None
    with subprocess.Popen([sys.executable, script]) as process:
        try:
            until(lambda: "in move" in outside_stacks.read_stacks(process.pid, py_spy=py_spy).text, "its loop")
            stacks = read_standing(process.pid, py_spy=py_spy)
        finally:
            process.kill()
    assert stacks.text == ""
    assert stacks.problem.startswith((f"process {process.pid} moves: ", "py-spy could not read process"))
