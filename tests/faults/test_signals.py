"""A training that asks Python for its own stacks still gets them: before, during and after a run."""

import faulthandler
import os
import signal
from pathlib import Path

import pytest

import traincope
from tests.faults.victims.victims import Victims

ASKED = "most recent call first"
"""A line that `faulthandler` writes once per thread."""


def ask_for_stacks(out: str, when: str, chain: bool) -> list[int]:
    """Register a file, and receive the signal in the run and after it. Returns the number of dumps each time."""
    stacks_file = Path("own").open("w+")  # noqa: SIM115 - a signal may come at any time
    num_dumps = []

    def ask() -> None:
        signal.raise_signal(signal.SIGUSR1)
        num_dumps.append(Path("own").read_text().count(ASKED))

    if chain:
        signal.signal(signal.SIGUSR1, lambda *_: None)
    if when == "before":
        faulthandler.register(signal.SIGUSR1, file=stacks_file, all_threads=False, chain=chain)
    with traincope.run(out) as run:
        run.step()
        if when == "inside":
            faulthandler.register(signum=signal.SIGUSR1, file=stacks_file, all_threads=False, chain=chain)
        ask()
    ask()
    return num_dumps


@pytest.mark.parametrize(("when", "chain"), [("before", False), ("inside", False), ("inside", True)])
def test_the_training_keeps_its_own_stack_dumps(victims: Victims, tmp_path: Path, when: str, chain: bool) -> None:
    ended = victims.run(ask_for_stacks, tmp_path / "run", when, chain)
    assert (ended.code, ended.result) == (0, [1, 2])
    assert list((tmp_path / "run").rglob("signal-*")) == []


def crash_after_the_run(out: str) -> None:
    with traincope.run(out) as run:
        run.step()
        faulthandler.enable()
    os.abort()


def test_the_trainings_crash_handler_stays(victims: Victims, tmp_path: Path) -> None:
    ended = victims.run(crash_after_the_run, tmp_path / "run")
    assert ended.code == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in ended.err


def restore_what_stood_there(out: str) -> bool:
    before = faulthandler.register, faulthandler.enable, signal.getsignal(signal.SIGUSR1)
    with traincope.run(out) as run:
        run.step()
    return before == (faulthandler.register, faulthandler.enable, signal.getsignal(signal.SIGUSR1))


def test_faulthandler_is_restored(victims: Victims, tmp_path: Path) -> None:
    assert victims.run(restore_what_stood_there, tmp_path / "run").result is True
