"""A training that asks Python for its own stacks still gets them: before, during and after a run."""

import faulthandler
import os
import signal
from pathlib import Path

import pytest

import traincope
from tests.faults.victims.victims import Victims
from traincope.store.layout import STACKS_FILE

ASKED = "most recent call first"
"""A line that `faulthandler` writes once per thread."""
CURRENT = "Current thread"
"""Begin of that line for the thread that got the signal: once per dump."""


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
    with traincope.run(out, signal_stacks=True) as run:
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
    with traincope.run(out, signal_stacks=True) as run:
        run.step()
        faulthandler.enable()
    os.abort()


def test_the_trainings_crash_handler_stays(victims: Victims, tmp_path: Path) -> None:
    ended = victims.run(crash_after_the_run, tmp_path / "run")
    assert ended.code == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in ended.err


def restore_what_stood_there(out: str) -> bool:
    before = faulthandler.register, faulthandler.enable, signal.getsignal(signal.SIGUSR1)
    with traincope.run(out, signal_stacks=True) as run:
        run.step()
    return before == (faulthandler.register, faulthandler.enable, signal.getsignal(signal.SIGUSR1))


def test_faulthandler_is_restored(victims: Victims, tmp_path: Path) -> None:
    assert victims.run(restore_what_stood_there, tmp_path / "run").result is True


def ask_by_the_agents_signal(out: str) -> list[int]:
    """Receive SIGURG in the run, twice, and after it. Returns the number of threads' stacks each time."""
    num_stacks = []
    with traincope.run(out, signal_stacks=True) as run:
        run.step()
        (stacks,) = Path(out).rglob(STACKS_FILE)
        for _ in range(2):
            signal.raise_signal(signal.SIGURG)
            num_stacks.append(stacks.read_text().count(CURRENT))
    signal.raise_signal(signal.SIGURG)
    num_stacks.append(stacks.read_text().count(CURRENT))
    return num_stacks


def test_a_rank_writes_its_stacks_at_the_agents_signal_until_its_run_ends(victims: Victims, tmp_path: Path) -> None:
    ended = victims.run(ask_by_the_agents_signal, tmp_path / "run")
    assert (ended.code, ended.result) == (0, [1, 2, 2])


def catch_the_agents_signal_oneself(out: str) -> list[int]:
    got: list[int] = []
    signal.signal(signal.SIGURG, lambda number, _: got.append(number))
    with traincope.run(out, signal_stacks=True) as run:
        run.step()
        signal.raise_signal(signal.SIGURG)
    return [*got, len(list(Path(out).rglob(STACKS_FILE)))]


def test_a_training_that_catches_the_agents_signal_keeps_it(victims: Victims, tmp_path: Path) -> None:
    assert victims.run(catch_the_agents_signal_oneself, tmp_path / "run").result == [signal.SIGURG, 0]


def block_a_signal(out: str) -> dict[str, object]:
    """A training keeps SIGTERM away from its checkpoint. Every thread of the process gets the chance to take it."""
    with traincope.run(out) as run:
        run.step()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        os.kill(os.getpid(), signal.SIGTERM)
        waits = signal.SIGTERM in signal.sigpending()
        signal.sigwait({signal.SIGTERM})
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return {"waits": waits, "has threads": len(os.listdir("/proc/self/task")) > 1}


def test_a_signal_that_the_training_blocks_waits(victims: Victims, tmp_path: Path) -> None:
    ended = victims.run(block_a_signal, tmp_path / "run")
    assert (ended.code, ended.result) == (0, {"waits": True, "has threads": True})
