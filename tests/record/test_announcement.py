"""`with traincope.run():` says on a terminal where its run is; nothing else is written there."""

import os
import pty
import sys

import pytest

import traincope
from tests.faults.victims.victims import Victims


def record_twice(environment: dict[str, str], terminal: str | None = None) -> None:
    """Record two runs in this folder, with a terminal as the standard error."""
    os.environ.update(environment)
    if terminal is not None:
        os.dup2(os.open(terminal, os.O_WRONLY | os.O_NOCTTY), 2)
    for _ in range(2):
        with traincope.run() as run:
            run.step()


@pytest.mark.parametrize(
    ("environment", "lines"),
    [
        ({}, 1),
        ({"TRAINCOPE_NOTES": os.devnull}, 0),
        ({"TRAINCOPE_FIRST_ATTEMPT": "0"}, 0),
        ({"TRAINCOPE": "off"}, 0),
    ],
)
def test_rank_0_names_the_next_command_once(victims: Victims, environment: dict[str, str], lines: int) -> None:
    """Below `traincope run` and `traincope train` it is silent: they print the outcome."""
    outer, inner = pty.openpty()
    directory, _ = victims.start(record_twice, environment, os.ttyname(inner))
    ended = victims.ended(directory)
    os.close(inner)
    printed = b""
    while True:
        try:
            printed += os.read(outer, 4096)
        except OSError:  # nothing has the other end open
            break
    os.close(outer)
    assert ended.code == 0, printed
    shown = printed.decode().splitlines()
    assert len(shown) == lines
    names = {run.name for run in directory.glob("traincope_runs/*")}
    assert all(line.split(" traincope report ")[1] in names for line in shown)


def test_a_file_gets_nothing(victims: Victims) -> None:
    ended = victims.run(record_twice, {})
    assert (ended.code, ended.out, ended.err) == (0, "", "")


class OnlyWrites:
    """Standard error as trainings replace it, to write it into a file too."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def record_with_another_standard_error() -> str:
    sys.stderr = stderr = OnlyWrites()  # type: ignore[assignment]
    record_twice({})
    return stderr.text


def test_an_object_in_place_of_standard_error_gets_nothing(victims: Victims) -> None:
    ended = victims.run(record_with_another_standard_error)
    assert (ended.code, ended.result, ended.err) == (0, "", "")
