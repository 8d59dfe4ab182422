"""Exceptions of the training that are raised inside a hook reach the training."""

import ctypes
import functools
import logging
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import traincope
from traincope.record import run as runs
from traincope.record.instrumentation import guard as guarding
from traincope.record.instrumentation.asynchronous import suppressed
from traincope.record.instrumentation.guard import guard
from traincope.record.segments.names import LineFile
from traincope.record.session.control import _read_level
from traincope.record.session.recorder import _remove_empty
from traincope.timeline import open_run


class Preempted(Exception):
    pass


class WithDefault(Exception):
    def __init__(self, message: str = "time is up") -> None:
        super().__init__(message)


def plain(_number: int, _frame: FrameType | None) -> None:
    raise Preempted


def builtin(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError("time is up")


def deep(*_: Any) -> None:
    def fail() -> None:
        raise RuntimeError("a message like torch's")

    fail()


def restoring(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise ValueError("late")


class Handler:
    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        raise OSError("as an object")

    def method(self, _number: int, _frame: FrameType | None) -> None:
        raise KeyError("as a method")


def with_more(_more: str, _number: int, _frame: FrameType | None) -> None:
    raise AttributeError("partial")


HANDLERS: list[tuple[Callable[..., Any], type[BaseException]]] = [
    (plain, Preempted),
    (builtin, TimeoutError),
    (deep, RuntimeError),
    (restoring, ValueError),
    (Handler(), OSError),
    (Handler().method, KeyError),
    (functools.partial(with_more, "more"), AttributeError),
    (lambda *_: sys.exit(3), SystemExit),
    (signal.default_int_handler, KeyboardInterrupt),
]


@pytest.fixture
def handled() -> Iterator[Callable[[Callable[..., Any]], object]]:
    before = signal.getsignal(signal.SIGUSR1)
    guarding.begin_run()
    yield functools.partial(signal.signal, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(("handler", "kind"), HANDLERS)
def test_what_a_signal_handler_raises_passes_a_guard(handled: Any, handler: Any, kind: type[BaseException]) -> None:
    handled(handler)
    with pytest.raises(kind):
        guard(lambda: signal.raise_signal(signal.SIGUSR1))()
    assert guarding.failures == {}


@pytest.mark.parametrize("kind", [OSError, Exception])
def test_what_a_signal_handler_raises_is_not_suppressed(handled: Any, kind: type[Exception]) -> None:
    handled(builtin)
    with pytest.raises(TimeoutError), suppressed(kind):
        signal.raise_signal(signal.SIGUSR1)
    with suppressed(kind):
        raise OSError("our own")


def test_what_a_handler_raises_while_an_error_is_logged_passes(handled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    handled(plain)
    monkeypatch.setattr(
        logging.getLogger(guarding.__name__), "warning", lambda *_, **__: signal.raise_signal(signal.SIGUSR1)
    )
    with pytest.raises(Preempted):
        guard(lambda: int("x"))()


class Interrupting(type(Path())):  # type: ignore[misc]
    """A path at whose opening the signal arrives."""

    def __fspath__(self) -> str:
        signal.raise_signal(signal.SIGUSR1)
        return super().__fspath__()


def test_a_handlers_time_out_is_not_taken_for_a_full_disk(handled: Any, tmp_path: Path) -> None:
    """TimeoutError is an OSError."""
    file = LineFile(tmp_path / "names.jsonl")
    handled(builtin)
    file.path = Interrupting(file.path)
    with pytest.raises(TimeoutError, match="time is up"):
        file.append(0, "1")
    with pytest.raises(TimeoutError, match="time is up"):
        _read_level(Interrupting(tmp_path / "level"))
    with pytest.raises(TimeoutError, match="time is up"):
        _remove_empty(Interrupting(tmp_path / "empty"))


def test_a_handlers_time_out_passes_the_start_of_a_run(
    handled: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run starts."""
    handled(builtin)
    with monkeypatch.context() as patch:
        patch.setattr(runs, "Recorder", lambda *_, **__: signal.raise_signal(signal.SIGUSR1))
        with pytest.raises(TimeoutError, match="time is up"):
            traincope.run(tmp_path / "run").__enter__()
    with traincope.run(tmp_path / "run") as run:
        run.step()
    assert len(open_run(tmp_path / "run").ranks) == 1


@pytest.mark.parametrize("kind", [Preempted, WithDefault, TimeoutError])
def test_an_exception_from_another_thread_passes_a_guard(kind: type[Exception]) -> None:
    guarding.begin_run()
    reached: list[BaseException] = []

    def run() -> None:
        try:
            guard(random.shuffle)(bytearray(50_000_000))  # seconds of Python code that is not the training's
        except kind as error:
            reached.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))
    thread.join()
    assert [type(error) for error in reached] == [kind]


def user_code() -> None:
    """Fail as a class of the training may that a hook calls on purpose."""
    raise Preempted


def bare_raise() -> None:
    raise TimeoutError


@pytest.mark.parametrize(
    "hook",
    [lambda: vars()["missing"], lambda: next(iter(())), lambda: [].pop(), lambda: int("x"), user_code, bare_raise],
)
def test_an_error_of_a_hook_stays_in_its_guard(hook: Callable[[], object]) -> None:
    guarding.begin_run()
    assert guard(hook)() is None
    assert len(guarding.failures) == 1


def test_a_hook_that_reaches_the_recursion_limit_loses_one_record(caplog: pytest.LogCaptureFixture) -> None:
    """It is neither logged nor switched off: the training is near the limit, and does not reach it."""
    guarding.begin_run()

    def endless() -> None:
        endless()

    hook = guard(endless)
    for _ in range(2 * guarding.MAX_ERRORS):
        hook()
    (note,) = guarding.failure_notes().values()
    assert note == f"on, but gave up {2 * guarding.MAX_ERRORS} calls close to Python's recursion limit"
    assert caplog.records == []
