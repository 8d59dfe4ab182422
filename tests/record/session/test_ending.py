"""Record of an exception: its message and the places of its traceback, without calling its code."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from traincope.record.segments.names import MAX_DETAIL_CHARACTERS
from traincope.record.session.ending import (
    MAX_CHAIN,
    MAX_FRAMES,
    MAX_MESSAGE_CHARACTERS,
    _chosen,
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


class DistNetworkError(RuntimeError):
    """By name, as torch's own."""


class DistBackendError(RuntimeError):
    """By name, as torch's own."""


class Refused(DistNetworkError):
    pass


@pytest.mark.parametrize(
    ("error", "of_communication"),
    [
        (
            RuntimeError("[/x/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation"),
            True,
        ),
        (RuntimeError("Application timeout caused pair closure"), True),
        (RuntimeError("Connection closed by peer [127.0.0.1]:51111"), True),
        (RuntimeError("Read error [10.0.0.2]:4004: Connection reset by peer"), True),
        (RuntimeError("writev [10.0.0.2]:4004: Broken pipe"), True),
        (RuntimeError("Gloo connectFullMesh failed with Connect timeout"), True),
        (RuntimeError("[enforce fail at /y/third_party/gloo/gloo/transport/tcp/pair.cc:535] 32 vs 16"), True),
        (RuntimeError("[Rank 0]: Rank 2 failed to pass monitoredBarrier in 25000 ms"), True),
        (RuntimeError("Rank 1 successfully reached monitoredBarrier, but received errors while waiting"), True),
        (RuntimeError("NCCL communicator was aborted on rank 3."), True),
        (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:1025, remote process exited"), True),
        (RuntimeError("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"), True),
        (RuntimeError("wait timeout after 300000ms, keys: /default_pg/0"), True),
        (DistNetworkError("The client socket has failed"), True),
        (Refused("anything"), True),
        (DistBackendError("NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled system error, ncclSystemError"), True),
        (DistBackendError("ncclRemoteError: a remote process exited or there was a network error"), True),
        (DistBackendError("[1] is setting up NCCL communicator via c10d key-value store by key '0'"), True),
        (RuntimeError("Some NCCL operations have failed or timed out."), True),
        (RuntimeError("Detected mismatch between collectives on ranks. Rank 0 is running collective"), True),
        (RuntimeError("Timeout waiting for key: default_pg/0/0 after 300000 ms"), True),
        (DistBackendError("NCCL error: unhandled cuda error. Last error: Cuda failure 2 'out of memory'"), False),
        (DistBackendError("ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0"), False),
        (DistNetworkError("The server socket has failed to bind to port 29500"), False),
        (DistNetworkError("The server socket has failed to listen on any local network address"), False),
        (RuntimeError("Timed out waiting for the licence server"), False),
        (RuntimeError("Connection closed by peer"), False),
        (RuntimeError("cannot read /home/gloo/data.bin"), False),
        (ConnectionResetError(104, "Connection reset by peer"), False),
        (ValueError("NCCL error"), False),
    ],
)
def test_an_error_of_the_communication_is_known_by_its_type_or_its_text(
    error: BaseException, of_communication: bool
) -> None:
    assert ending_of(type(error), error, messages=False).details.get("communication", False) is of_communication


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


def test_of_many_frames_the_trainings_own_are_kept() -> None:
    """A model calls its blocks through frames of torch."""
    torch = [f"/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:{line}" for line in range(100)]
    places = [("/home/me/train.py", 7, "main"), *((place, 0, "forward") for place in torch)]
    kept = _chosen(places, 6)
    assert kept[0] == "/home/me/train.py:7 in main"
    assert kept[-1] == f"{torch[-1]}:0 in forward"
    assert len(kept) == 6


def chained(details: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(str(each["link"]), str(each["type"])) for each in details.get("chain", [])]


def test_the_exceptions_behind_an_exception_are_recorded_as_python_prints_them() -> None:
    def fail() -> None:
        try:
            try:
                {}["label"]
            except KeyError as error:
                raise ValueError("bad record") from error
        finally:
            raise RuntimeError("Application timeout caused pair closure")

    error = raised(fail)
    details = ending_of(RuntimeError, error).details
    assert details["communication"] is True
    assert chained(details) == [("context", "ValueError"), ("cause", "KeyError")]
    (_, message), (_, of_key) = [(each["type"], each["message"]) for each in details["chain"]]  # type: ignore[index,union-attr]
    assert (message, of_key) == ("bad record", "'label'")
    assert "bad record" not in str(ending_of(RuntimeError, error, messages=False).details)


def test_the_first_exception_of_a_group_is_recorded_with_what_it_came_from() -> None:
    """A group may be in another one, and its class may have code of the training."""

    class Grouped(ExceptionGroup[Exception]):
        exceptions = property(lambda _: 1 / 0)  # type: ignore[assignment]

    async def ask(answer: str) -> None:
        try:
            json.loads(answer)
        except ValueError as error:
            raise RuntimeError("no answer") from error

    async def ask_all() -> None:
        async with asyncio.TaskGroup() as tasks:
            for answer in ("{}", "<html>"):
                tasks.create_task(ask(answer))

    error = raised(lambda: asyncio.run(ask_all()))
    chain = [("member", "RuntimeError"), ("cause", "JSONDecodeError")]
    assert chained(ending_of(type(error), error).details) == chain
    outer = Grouped("epoch", [error])  # type: ignore[list-item]
    assert chained(ending_of(Grouped, outer).details) == [("member", "ExceptionGroup"), *chain]


def test_an_exception_that_was_handled_before_the_last_step_is_no_cause() -> None:
    """The whole training may run in a handler, e.g. of a package that is missing."""

    def train() -> None:
        try:
            raise ImportError("no module named apex")
        except ImportError as error:
            handled.append(id(error))
            raise RuntimeError("Application timeout caused pair closure")  # noqa: B904 - the case itself

    handled: list[int] = []
    error = raised(train)
    assert chained(ending_of(RuntimeError, error).details) == [("context", "ImportError")]
    assert chained(ending_of(RuntimeError, error, handled=handled[0]).details) == []


def test_a_hidden_context_and_a_circle_end_the_chain() -> None:
    def fail() -> None:
        try:
            raise KeyError("label")
        except KeyError:
            raise ValueError("bad record") from None

    error, circle = raised(fail), ValueError("a")
    circle.__context__ = RuntimeError("b")
    circle.__context__.__context__ = circle
    assert chained(ending_of(ValueError, error).details) == []
    assert chained(ending_of(ValueError, circle).details) == [("context", "RuntimeError")]


def test_long_chains_fit_into_the_details_of_one_event() -> None:
    error: BaseException = ValueError("x" * 10_000)
    for number in range(8):
        outer = raised(lambda: recurse(40))
        outer.args = (f"{number}" + "é" * 3_000,)
        outer.__cause__, error = error, outer
    details = ending_of(ValueError, error).details
    assert len(json.dumps(details)) <= MAX_DETAIL_CHARACTERS
    assert chained(details) == [("cause", "ValueError")] * MAX_CHAIN


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGUSR2, "SIGUSR2"), (signal.SIGRTMIN + 3, f"signal {signal.SIGRTMIN + 3}")]
)
def test_an_exception_of_a_signals_handler_has_the_signals_name(number: int, name: str) -> None:
    """Most real-time signals have only a number."""

    def handler(*_: object) -> None:
        raise InterruptedError("drained")

    before = signal.signal(number, handler)
    try:
        error = raised(lambda: os.kill(os.getpid(), number))
        details = ending_of(InterruptedError, error).details
    finally:
        signal.signal(number, before)
    assert details["signal_handler"] == name
    assert "signal_handler" not in ending_of(ValueError, raised(lambda: recurse(0))).details


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
