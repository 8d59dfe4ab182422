"""Calls that never return, made of events that nothing sets."""

import threading
from collections.abc import Iterator
from concurrent.futures import TimeoutError as Expired

import pytest

from traincope.store.places.calls import Call, Calls


@pytest.fixture
def never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_calls_that_never_return_do_not_stop_later_ones(never: threading.Event) -> None:
    calls = Calls(at_once=2, most=4)
    for _ in range(3):
        with pytest.raises(Expired):
            calls.begin(never.wait, seconds=60.0).exception(0.01)
    answer: Call[int] = calls.begin(lambda: 7, seconds=60.0)
    assert (answer.exception(60.0), answer.result()) == (None, 7)


def test_the_threads_of_calls_that_never_return_are_bounded(never: threading.Event) -> None:
    calls = Calls(at_once=2, most=3)
    for _ in range(3):
        calls.begin(never.wait, seconds=60.0).give_up()
    with pytest.raises(Expired):
        calls.begin(lambda: 7, seconds=60.0)


def test_only_so_many_calls_run_at_the_same_time(never: threading.Event) -> None:
    calls = Calls(at_once=1, most=4)
    first = calls.begin(never.wait, seconds=60.0)
    with pytest.raises(Expired):
        calls.begin(lambda: 7, seconds=0.01)
    never.set()
    assert first.exception(60.0) is None
    assert calls.begin(lambda: 7, seconds=60.0).exception(60.0) is None


def test_what_a_call_raises_reaches_who_waits_for_it() -> None:
    error = TimeoutError("of the store")
    assert Calls(at_once=1, most=1).begin(lambda: _raise(error), seconds=60.0).exception(60.0) is error


def _raise(error: Exception) -> None:
    raise error
