"""Signals that the training handles: each is recorded, and the handlers stay the training's own."""

import faulthandler
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import traincope
from traincope.events import SIGNAL_HANDLED, Kind
from traincope.record.process import handled_signals
from traincope.store import read_run

ASKED = signal.SIGUSR1


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (ASKED, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def handled(run: Path) -> list[tuple[int, object]]:
    """Step and name of each recorded signal."""
    (rank,) = read_run(run).ranks
    events = [record for record in rank.thread("main") if record["kind"] == Kind.EVENT]
    named = [event for event in events if rank.name(int(event["name"])) == SIGNAL_HANDLED]
    return [(int(event["step"]), rank.details[int(event["group"])]["signal"]) for event in named]


def test_a_signal_is_recorded_in_its_step_whenever_its_handler_was_set(tmp_path: Path) -> None:
    taken: list[int] = []

    def before(number: int, _frame: object) -> None:
        taken.append(number)

    def during(number: int, _frame: object) -> None:
        taken.append(-number)

    signal.signal(ASKED, before)
    with traincope.run(tmp_path / "run") as run:
        run.step()
        assert signal.getsignal(ASKED) is before
        os.kill(os.getpid(), ASKED)
        run.step()
        assert signal.signal(signal.SIGTERM, during) in (signal.SIG_DFL, signal.Handlers.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        assert signal.signal(signal.SIGTERM, signal.SIG_IGN) is during
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    os.kill(os.getpid(), ASKED)
    assert taken == [ASKED, -signal.SIGTERM, ASKED]
    assert signal.getsignal(ASKED) is before
    assert handled(tmp_path / "run") == [(0, "SIGUSR1"), (1, "SIGTERM")]


def test_what_a_handler_raises_reaches_the_training(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stop

    with traincope.run(tmp_path / "run") as run:
        run.step()
        signal.signal(ASKED, stop)
        with pytest.raises(Stop):
            os.kill(os.getpid(), ASKED)
    assert handled(tmp_path / "run") == [(0, "SIGUSR1")]


def test_the_trainings_faulthandler_keeps_the_signal(tmp_path: Path) -> None:
    """It is the kernel's action, and chains to the handler in Python."""
    taken: list[int] = []
    signal.signal(ASKED, lambda number, _: taken.append(number))
    with (tmp_path / "stacks").open("w") as stacks:
        faulthandler.register(ASKED, file=stacks, all_threads=False, chain=True)
        with traincope.run(tmp_path / "run") as run:
            run.step()
            os.kill(os.getpid(), ASKED)
        os.kill(os.getpid(), ASKED)
        faulthandler.unregister(ASKED)
    assert taken == [ASKED, ASKED]
    assert (tmp_path / "stacks").read_text().count("most recent call first") == 2
    assert handled(tmp_path / "run") == [(0, "SIGUSR1")]


def test_only_the_first_of_many_signals_are_recorded(tmp_path: Path) -> None:
    taken: list[int] = []
    signal.signal(ASKED, lambda number, _: taken.append(number))
    with traincope.run(tmp_path / "run") as run:
        run.step()
        for _ in range(handled_signals.MAX_RECORDED + 3):
            os.kill(os.getpid(), ASKED)
    assert len(taken) == handled_signals.MAX_RECORDED + 3
    assert len(handled(tmp_path / "run")) == handled_signals.MAX_RECORDED


def test_a_forked_child_handles_its_signals_alone(tmp_path: Path) -> None:
    signal.signal(ASKED, lambda *_: os._exit(7))
    with traincope.run(tmp_path / "run") as run:
        run.step()
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), ASKED)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert handled(tmp_path / "run") == []


def test_a_handler_that_an_earlier_name_returned_can_be_set_again(tmp_path: Path) -> None:
    """`from signal import signal` before the run: it returns what is observed."""
    taken: list[int] = []
    set_early = signal.signal
    first, second = lambda number, _: taken.append(number), lambda *_: None
    set_early(ASKED, first)
    with traincope.run(tmp_path / "run") as run:
        run.step()
        returned = set_early(ASKED, second)
        assert returned == first
        assert signal.signal(ASKED, returned) is second
        assert signal.getsignal(ASKED) is first
        os.kill(os.getpid(), ASKED)
    assert set_early(ASKED, second) is first
    assert taken == [ASKED]
    assert handled(tmp_path / "run") == [(0, "SIGUSR1")]
