"""A training that asks Python for its own stacks goes on having them: before a run, in it and after it."""

import faulthandler
import os
import signal
from pathlib import Path

import pytest

import traincope
from tests.faults.victims import Victims

ASKED = "most recent call first"
"""In what `faulthandler` writes, once a thread."""


def ask_for_stacks(out: str, when: str, chain: bool) -> list[int]:
    """Registers a file of its own, and is sent the signal in the run and after it; where it was found each time."""
    own = Path("own").open("w+")  # noqa: SIM115 - a signal may come at any time
    found = []

    def ask() -> None:
        signal.raise_signal(signal.SIGUSR1)
        found.append(Path("own").read_text().count(ASKED))

    if chain:
        signal.signal(signal.SIGUSR1, lambda *_: None)
    if when == "before":
        faulthandler.register(signal.SIGUSR1, file=own, all_threads=False, chain=chain)
    with traincope.run(out) as run:
        run.step()
        if when == "inside":
            faulthandler.register(signum=signal.SIGUSR1, file=own, all_threads=False, chain=chain)
        ask()
    ask()
    return found


@pytest.mark.parametrize(("when", "chain"), [("before", False), ("inside", False), ("inside", True)])
def test_the_stacks_that_a_training_asks_for_are_its_own(
    victims: Victims, tmp_path: Path, when: str, chain: bool
) -> None:
    ended = victims.run(ask_for_stacks, tmp_path / "run", when, chain)
    assert (ended.code, ended.result) == (0, [1, 2])
    assert list((tmp_path / "run").rglob("signal-*")) == []


def crash_after_the_run(out: str) -> None:
    with traincope.run(out) as run:
        run.step()
        faulthandler.enable()
    os.abort()


def test_the_crash_handler_that_a_training_enables_stays(victims: Victims, tmp_path: Path) -> None:
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
