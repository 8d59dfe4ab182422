"""Calls that end a process, and errors that end a thread: their lines are recorded, and the calls do what they did."""

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import traincope
from tests.faults.victims.victims import Victims
from traincope.events import LEFT, THREAD_ENDED
from traincope.store import RankRecords, read_run


def leave(directory: str, call: str, code: int) -> None:
    """End this process in the handler of a signal."""

    def on_term(_number: int, _frame: FrameType | None) -> None:
        if call == "sys.exit":
            sys.exit(code)
        os._exit(code)

    signal.signal(signal.SIGTERM, on_term)
    traincope.run(directory, agent=False).__enter__()
    os.kill(os.getpid(), signal.SIGTERM)


def events(path: Path, name: str) -> list[dict[str, Any]]:
    (rank,) = read_run(path).ranks
    return [dict(rank.details[number]) for number in sorted(rank.details) if _named(rank, number, name)]


def _named(rank: RankRecords, number: int, name: str) -> bool:
    records = [each for thread in rank.threads for each in rank.thread(thread) if int(each["group"]) == number]
    return any(rank.name(int(each["name"])) == name for each in records)


@pytest.mark.parametrize(("call", "code"), [("sys.exit", 0), ("os._exit", 0), ("os._exit", 7)])
def test_a_call_that_ends_the_process_has_its_line_and_the_signal_whose_handler_it_is_in(
    victims: Victims, tmp_path: Path, call: str, code: int
) -> None:
    assert victims.run(leave, tmp_path / "run", call, code).code == code
    (details,) = events(tmp_path / "run", LEFT)
    script = Path(__file__)
    (line,) = (n for n, text in enumerate(script.read_text().splitlines(), 1) if text.strip() == f"{call}(code)")
    expected = {
        "type": "SystemExit",
        "call": call,
        "code": code,
        "at": f"{script.name}:{line}",
        "signal_handler": "SIGTERM",
    }
    assert expected.items() <= details.items()
    assert details["traceback"][-1] == f"{script}:{line} in on_term"


def test_the_error_of_a_thread_has_the_threads_name_and_is_still_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise OSError(5, "Input/output error")

    before = threading.excepthook
    threading.excepthook = threading.__excepthook__
    try:
        with traincope.run(tmp_path / "run", agent=False):
            thread = threading.Thread(target=fail, name="prefetch")
            thread.start()
            thread.join()
    finally:
        threading.excepthook = before
    (details,) = events(tmp_path / "run", THREAD_ENDED)
    assert (details["type"], details["thread"]) == ("OSError", "prefetch")
    assert "Input/output error" in capsys.readouterr().err


def test_after_the_run_the_calls_are_those_of_before(tmp_path: Path) -> None:
    before = sys.exit, os._exit, threading.excepthook
    with traincope.run(tmp_path / "run", agent=False):
        assert sys.exit is not before[0]
    assert (sys.exit, os._exit, threading.excepthook) == before
