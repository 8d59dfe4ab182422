"""Record of an exception: its message and the places of its traceback, without calling its code."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from traincope.record.session.ending import (
    MAX_FRAMES,
    MAX_MESSAGE_CHARACTERS,
    ending_of,
    fatal_error,
    frames_of,
    message_of,
)


class Worded(ValueError):
    """Its text is code of the training."""

    def __str__(self) -> str:
        raise AssertionError("called")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("bad sample in shard 7"), "bad sample in shard 7"),
        (ValueError(), ""),
        (ValueError("shard", 7), "('shard', 7)"),
        (KeyError("weight"), "'weight'"),
        (
            FileNotFoundError(2, "No such file or directory", "/data/7"),
            "[Errno 2] No such file or directory: '/data/7'",
        ),
        (Worded("bad", 7), "bad, 7"),
        (ValueError("bad", object()), "bad"),
        (subprocess.CalledProcessError(1, ["ls"]), "1"),
        (SystemExit("no data"), "no data"),
        (SystemExit(3), ""),
    ],
)
def test_a_message_is_what_python_would_print(error: BaseException, message: str) -> None:
    assert message_of(error) == message


def test_a_long_message_keeps_its_begin_and_its_end() -> None:
    message = message_of(ValueError("begin" + "x" * 10_000 + "end"))
    assert message.startswith("begin")
    assert message.endswith("end")
    assert len(message) < MAX_MESSAGE_CHARACTERS + 10


def recurse(times: int) -> None:
    if not times:
        raise ValueError("deep")
    recurse(times - 1)


def raised(call: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any exception
        call()
    return caught.value


def test_the_innermost_frames_of_a_traceback_are_kept() -> None:
    assert [place.rpartition(" in ")[2] for place in frames_of(raised(lambda: recurse(1)).__traceback__)] == [
        "raised",
        "<lambda>",
        "recurse",
        "recurse",
    ]
    deep = frames_of(raised(lambda: recurse(100)).__traceback__)
    assert len(deep) == MAX_FRAMES
    assert {place.rpartition(" in ")[2] for place in deep} == {"recurse"}
    assert all(place.startswith(f"{__file__}:") for place in deep)


def test_an_exit_has_the_message_of_the_handled_exception_only_if_messages_are_wanted() -> None:
    def leave() -> None:
        try:
            recurse(0)
        except ValueError:
            raise SystemExit(3) from None

    error = raised(leave)
    details = ending_of(SystemExit, error).details
    assert (details["code"], details["handling"], details["handling_message"]) == (3, "ValueError", "deep")
    assert "message" not in details
    assert not any("message" in key for key in ending_of(SystemExit, error, messages=False).details)


def test_an_error_at_a_prompt_or_in_a_notebook_does_not_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    error = KeyError("no such token")
    monkeypatch.setattr(sys, "last_value", error, raising=False)
    assert fatal_error() is error
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert fatal_error() is None
